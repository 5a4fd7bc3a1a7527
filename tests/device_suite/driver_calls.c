// Counts calls from outside of the program: loaded before everything else, it hands out its own
// functions where the program looks up those of the driver and the compiler, and passes each call on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);

// Allocations of the host by the thread that asks.
static __thread long allocations __attribute__((tls_model("initial-exec")));

void *malloc(size_t n) { allocations++; return __libc_malloc(n); }
void *calloc(size_t n, size_t of) { allocations++; return __libc_calloc(n, of); }
void *realloc(void *p, size_t n) { allocations++; return __libc_realloc(p, n); }

typedef long (*function)(long, long, long, long, long, long);

#define EACH(X)                                                                                \
  X(cuMemAlloc_v2) X(cuMemAllocAsync) X(cuMemCreate) X(cuMemMap) X(cuMemUnmap)                 \
  X(cuMemAddressReserve) X(cuMemHostAlloc) X(cuMemFree_v2) X(cuModuleLoadData)                 \
  X(cuModuleGetFunction) X(cuFuncLoad) X(cuStreamBeginCapture_v2)                              \
  X(cuGraphInstantiateWithFlags) X(cuStreamSynchronize) X(cuCtxSynchronize)                    \
  X(cuEventSynchronize) X(cuEventCreate) X(cuEventRecord) X(cuMemcpyHtoDAsync_v2)              \
  X(cuMemcpy2DAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuLaunchKernelEx) X(cuGraphLaunch)           \
  X(nvrtcCompileProgram)

#define DEFINE(name)                                                                           \
  static function real_##name;                                                                 \
  static long count_##name;                                                                    \
  static long call_##name(long a, long b, long c, long d, long e, long f) {                    \
    __atomic_fetch_add(&count_##name, 1, __ATOMIC_RELAXED);                                    \
    return real_##name(a, b, c, d, e, f);                                                      \
  }
EACH(DEFINE)

void *dlsym(void *library, const char *name) {
  static void *(*real)(void *, const char *);
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void *found = real(library, name);
#define LOOK_UP(known)                                                                         \
  if (found && !strcmp(name, #known)) {                                                        \
    real_##known = (function)found;                                                            \
    return (void *)call_##known;                                                               \
  }
  EACH(LOOK_UP)
  return found;
}

// How often a function was called; -1 of one that is not counted.
long piecewise_calls(const char *name) {
#define COUNT(known) if (!strcmp(name, #known)) return __atomic_load_n(&count_##known, __ATOMIC_RELAXED);
  EACH(COUNT)
  return -1;
}

long piecewise_allocations(void) { return allocations; }

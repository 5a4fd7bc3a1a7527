// Counts calls from outside of the program: loaded before everything else, it hands out its own
// functions where the program looks up those of the driver and the compiler, and passes each call on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

// Allocations of the host, by the thread that asks and by all, but for what the functions below do
// themselves; those of one size are counted apart.
static __thread long allocations __attribute__((tls_model("initial-exec")));
static __thread int inside __attribute__((tls_model("initial-exec")));
static long of_all_threads, set_apart, apart_bytes = -1;
static void count(size_t bytes) {
  if (inside) return;
  if (bytes == (size_t)__atomic_load_n(&apart_bytes, __ATOMIC_RELAXED)) {
    __atomic_fetch_add(&set_apart, 1, __ATOMIC_RELAXED);
    return;
  }
  allocations++;
  __atomic_fetch_add(&of_all_threads, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t n) { count(n); return __libc_malloc(n); }
void *calloc(size_t n, size_t of) { count(n * of); return __libc_calloc(n, of); }
void *realloc(void *p, size_t n) { count(n); return __libc_realloc(p, n); }
void *memalign(size_t to, size_t n) { count(n); return __libc_memalign(to, n); }
void *aligned_alloc(size_t to, size_t n) { count(n); return __libc_memalign(to, n); }
int posix_memalign(void **p, size_t to, size_t n) {
  count(n);
  if (to < sizeof(void *) || (to & (to - 1))) return EINVAL;
  void *found = __libc_memalign(to, n);
  if (!found) return ENOMEM;
  *p = found;
  return 0;
}

typedef long (*function)(long, long, long, long, long, long);

#define PASSED(X)                                                                              \
  X(cuMemAlloc_v2) X(cuMemAllocAsync) X(cuMemCreate) X(cuMemMap) X(cuMemUnmap)                 \
  X(cuMemAddressReserve) X(cuMemHostRegister_v2) X(cuMemFree_v2) X(cuModuleLoadData)           \
  X(cuMemRelease) X(cuMemSetAccess) X(cuMemAddressFree) X(cuMemHostUnregister)                 \
  X(cuMemGetInfo_v2) X(cuMemsetD8Async) X(cuMemsetD16Async) X(cuMemsetD32Async)                \
  X(cuModuleUnload) X(cuFuncSetAttribute) X(cuStreamCreate) X(cuStreamDestroy_v2)              \
  X(cuEventDestroy_v2) X(cuGraphUpload) X(cuGraphDestroy) X(cuGraphExecDestroy)                \
  X(cuMemcpyDtoDAsync_v2) X(cuMemHostAlloc) X(cuMemAllocHost_v2) X(cuMemFreeHost)              \
  X(cuMemcpy) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoD_v2) X(cuMemcpy2D_v2)        \
  X(cuModuleGetFunction) X(cuFuncLoad) X(cuCtxSynchronize) X(cuEventSynchronize)               \
  X(cuEventCreate) X(cuEventRecord) X(cuMemcpyHtoDAsync_v2) X(cuMemcpy2DAsync_v2)              \
  X(cuMemcpyDtoHAsync_v2) X(cuLaunchKernelEx) X(cuGraphLaunch) X(nvrtcCompileProgram)
#define EACH(X)                                                                                \
  PASSED(X) X(cuStreamSynchronize) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture)              \
  X(cuGraphInstantiateWithFlags)

// A function that counts calls of `name`, and does what `done` does.
#define COUNTED(prefix, name, done)                                                            \
  static long prefix##name(long a, long b, long c, long d, long e, long f) {                   \
    __atomic_fetch_add(&count_##name, 1, __ATOMIC_RELAXED);                                    \
    inside++;                                                                                  \
    long status = done(a, b, c, d, e, f);                                                      \
    inside--;                                                                                  \
    return status;                                                                             \
  }
#define DEFINE(name)                                                                           \
  static long count_##name;                                                                    \
  COUNTED(call_, name, around_##name)

// What is done in place of a call: the call, but for what is timed.
#define AROUND(name)                                                                           \
  static function real_##name;                                                                 \
  static long around_##name(long a, long b, long c, long d, long e, long f)
#define PASS(name) AROUND(name) { return real_##name(a, b, c, d, e, f); }
PASSED(PASS)

AROUND(cuStreamSynchronize) { return real_cuStreamSynchronize(a, b, c, d, e, f); }

// Where PIECEWISE_TIME_GRAPHS is set, a graph that was made executable is also updated in place by
// the graph that it was made from, and the parameters of each of its kernels are set to what they are;
// all are timed, each with the upload that it needs.
static function update, upload, nodes_of, type_of, parameters_of, set_parameters;
static double times[8];
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
static long stream;
static double begun;
AROUND(cuStreamBeginCapture_v2) {
  stream = a;
  begun = now();
  return real_cuStreamBeginCapture_v2(a, b, c, d, e, f);
}
AROUND(cuStreamEndCapture) {
  long status = real_cuStreamEndCapture(a, b, c, d, e, f);
  times[4] += now() - begun;
  return status;
}
static void set_all(long exec, long graph) {
  size_t count = 0, kernels = 0;
  if (!nodes_of || !type_of || !parameters_of || !set_parameters) return;
  if ((int)nodes_of(graph, 0, (long)&count, 0, 0, 0) || !count) return;
  long *nodes = malloc(count * sizeof *nodes);
  // As large as CUDA_KERNEL_NODE_PARAMS and more.
  long (*parameters)[16] = calloc(count, sizeof *parameters);
  if (nodes && parameters && !(int)nodes_of(graph, (long)nodes, (long)&count, 0, 0, 0)) {
    for (size_t i = 0; i < count; i++) {
      int type = -1;
      const int kernel = 0;
      if ((int)type_of(nodes[i], (long)&type, 0, 0, 0, 0) || type != kernel) continue;
      if ((int)parameters_of(nodes[i], (long)parameters[kernels], 0, 0, 0, 0)) continue;
      nodes[kernels++] = nodes[i];
    }
    double began = now();
    for (size_t i = 0; i < kernels; i++) {
      long status = set_parameters(exec, nodes[i], (long)parameters[i], 0, 0, 0);
      times[7] += (int)status != 0;
    }
    upload(exec, stream, 0, 0, 0, 0);
    real_cuStreamSynchronize(stream, 0, 0, 0, 0, 0);
    times[5] += now() - began;
    times[6] += kernels;
  }
  free(nodes);
  free(parameters);
}
AROUND(cuGraphInstantiateWithFlags) {
  if (!getenv("PIECEWISE_TIME_GRAPHS") || !update || !upload || !real_cuStreamSynchronize) {
    return real_cuGraphInstantiateWithFlags(a, b, c, d, e, f);
  }
  double began = now();
  long status = real_cuGraphInstantiateWithFlags(a, b, c, d, e, f);
  if ((int)status) return status;
  long exec = *(long *)a, result[8] = {0};
  upload(exec, stream, 0, 0, 0, 0);
  real_cuStreamSynchronize(stream, 0, 0, 0, 0, 0);
  double made = now();
  status = update(exec, b, (long)result, 0, 0, 0);
  upload(exec, stream, 0, 0, 0, 0);
  real_cuStreamSynchronize(stream, 0, 0, 0, 0, 0);
  times[0] += 1;
  times[1] += made - began;
  times[2] += now() - made;
  times[3] += (int)status != 0;
  set_all(exec, b);
  return 0;
}
EACH(DEFINE)

// A library of the driver's own, such as one of products, looks functions up by another call, under names
// without their versions: it is handed functions that count, too.
static long looked_up;
#define VIA(name)                                                                              \
  static function other_##name;                                                                \
  COUNTED(via_, name, other_##name)
EACH(VIA)

static int is_called(const char *known, const char *name) {
  size_t n = strlen(name);
  return !strncmp(known, name, n) && (!known[n] || !strcmp(known + n, "_v2"));
}

static function real_look_up;
static long look_up(long name, long to, long version, long flags, long e, long f) {
  long status = real_look_up(name, to, version, flags, e, f);
  function *found = (function *)to;
  if ((int)status || !found || !*found) return status;
  if (is_called("cuGetProcAddress_v2", (char *)name)) *found = look_up;
  // Another function of the same name, as for streams of each thread, is left as it is.
#define HAND_OUT(known)                                                                        \
  if (is_called(#known, (char *)name) && (!other_##known || other_##known == *found)) {         \
    other_##known = *found;                                                                    \
    *found = via_##known;                                                                      \
    __atomic_fetch_add(&looked_up, 1, __ATOMIC_RELAXED);                                       \
    return status;                                                                             \
  }
  EACH(HAND_OUT)
  return status;
}

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
  if (found && !strcmp(name, "cuGraphInstantiateWithFlags")) {
    update = (function)real(library, "cuGraphExecUpdate_v2");
    upload = (function)real(library, "cuGraphUpload");
    nodes_of = (function)real(library, "cuGraphGetNodes");
    type_of = (function)real(library, "cuGraphNodeGetType");
    parameters_of = (function)real(library, "cuGraphKernelNodeGetParams_v2");
    set_parameters = (function)real(library, "cuGraphExecKernelNodeSetParams_v2");
  }
  EACH(LOOK_UP)
  if (found && is_called("cuGetProcAddress_v2", name)) {
    real_look_up = (function)found;
    return (void *)look_up;
  }
  return found;
}

// How often a function was called; -1 of one that is not counted.
long piecewise_calls(const char *name) {
#define COUNT(known) if (!strcmp(name, #known)) return __atomic_load_n(&count_##known, __ATOMIC_RELAXED);
  EACH(COUNT)
  return -1;
}

// Graphs that were timed, seconds to make them executable, seconds to update them, how many the
// driver would not update, seconds to capture them, seconds to set the parameters of kernels, of how many, and
// how many of these the driver would not set.
void piecewise_graph_times(double *to) { memcpy(to, times, sizeof times); }

long piecewise_allocations(void) { return allocations; }

// Allocations of so many bytes are counted apart from now on.
void piecewise_set_apart(long bytes) { __atomic_store_n(&apart_bytes, bytes, __ATOMIC_RELAXED); }

long piecewise_allocations_apart(void) { return __atomic_load_n(&set_apart, __ATOMIC_RELAXED); }

// Functions that a library of the driver's own was handed.
long piecewise_looked_up(void) { return __atomic_load_n(&looked_up, __ATOMIC_RELAXED); }

long piecewise_allocations_of_all(void) {
  return __atomic_load_n(&of_all_threads, __ATOMIC_RELAXED);
}

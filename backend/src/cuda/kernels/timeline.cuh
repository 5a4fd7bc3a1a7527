// Included before a kernel whose blocks note where and when they ran. Each block has a place of
// its own; where there is no buffer (a launch outside a graph), nothing is noted.
#pragma once
#include "prelude.cuh"

// By the clock that all multiprocessors share, in nanoseconds. What several warps note is that of
// the last of them, also over replays: a later one has larger numbers.
struct PwBlock {
  u64 start, released, end;
  u32 multiprocessor, unused;
};
DEVICE u64 pw_now() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}
struct PwStamp {
  PwBlock* at;
  DEVICE explicit PwStamp(PwBlock* launch) : at(launch) {
    if (!at) return;
    at += blockIdx.x + gridDim.x * (blockIdx.y + (u64)gridDim.y * blockIdx.z);
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
      asm volatile("mov.u32 %0, %%smid;" : "=r"(at->multiprocessor));
      at->start = pw_now();
    }
  }
  DEVICE explicit PwStamp(int) : at(nullptr) {}
  DEVICE bool leads_warp() const {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 == 0;
  }
  DEVICE void released() const {
    if (at && leads_warp()) atomicMax(&at->released, pw_now());
  }
  DEVICE ~PwStamp() {
    if (at && leads_warp()) atomicMax(&at->end, pw_now());
  }
};

// In a kernel `pw_stamp` is its stamp; in a function that a kernel calls it is this, and nothing
// is noted there.
enum { pw_stamp };
DEVICE void pw_released(int) {}
DEVICE void pw_released(const PwStamp& stamp) { stamp.released(); }

// The first statement of a kernel makes its stamp. Of a source's kernels the one that is launched has
// a parameter `pw_stamps`; to the others it is this, and they note nothing.
enum { pw_stamps };
#undef PW_LAUNCH_DEPENDENTS
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PW_LAUNCH_DEPENDENTS() PwStamp pw_stamp(pw_stamps); pw_launch_dependents()
DEVICE void pw_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
#define PW_LAUNCH_DEPENDENTS() PwStamp pw_stamp(pw_stamps)
#endif

#undef PW_WAIT
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PW_WAIT() (pw_wait(), pw_released(pw_stamp))
DEVICE void pw_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
#define PW_WAIT() pw_released(pw_stamp)
#endif

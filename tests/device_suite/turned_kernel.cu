#include "prelude.cuh"
// test.turned: each element with its neighbour in the row, an element of a thread. What it loads and
// stores one by one, a region beside it may compute or take.
extern "C" __global__ void turned(PW_PARAMS_0, const float* w, PW_PARAMS_2, const i32* counts,
                                  u32 symbol, u32 width) {
  const auto x = PW_ELEMENTS_0;
  const auto y = PW_ELEMENTS_2;
  const u32 row = blockIdx.x;
  if ((i32)row >= counts[symbol]) return;
  for (u32 c = threadIdx.x; c < width; c += blockDim.x) {
    y.store(row, c, x.load(row, c) + w[c] * x.load(row, (c + 1) % width));
  }
}

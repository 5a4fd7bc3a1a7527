#include "prelude.cuh"
// test.turned of rows that a block has whole, so that a region that reduces them may make them.
extern "C" __global__ void turned(PW_PARAMS_0, const float* w, PW_PARAMS_2, const i32* counts,
                                  u32 symbol, u32 width) {
  const auto rows = PW_ROWS_0;
  const auto y = PW_ELEMENTS_2;
  for (u32 row = blockIdx.x; (i32)row < counts[symbol]; row += gridDim.x) {
    const auto* x = rows.row(row);
    for (u32 c = threadIdx.x; c < width; c += blockDim.x) {
      y.store(row, c, widen(x[c]) + w[c] * widen(x[(c + 1) % width]));
    }
  }
}

// y[b, m, n] = sum over k of x[b, m, k] * w[b, k, n] in float, any strides: 64 x 64 results of a
// block, 4 x 4 of a thread, k in order. Each result is summed alone, so it does not depend on
// how many rows there are.
enum { TILE = 64, DEPTH = 16 };

extern "C" __global__ void __launch_bounds__(256) matmul(
    const X* x, const W* w, Y* y, const i32* counts,
    u32 rows, u32 columns, u32 depth,
    u64 x_row, u64 x_depth, u64 x_batch,
    u64 w_depth, u64 w_column, u64 w_batch,
    u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  __shared__ float xs[DEPTH][TILE + 4], ws[DEPTH][TILE + 4];
  PW_WAIT();
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = real < rows ? real : rows;
  const u32 first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
  if (first_row >= real) return;
  x += blockIdx.z * x_batch;
  w += blockIdx.z * w_batch;
  y += (u64)blockIdx.z * rows * columns;
  const u32 across = threadIdx.x % 16, down = threadIdx.x / 16;
  float sum[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
  for (u32 at = 0; at < depth; at += DEPTH) {
    float a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Neighbouring threads read neighbouring elements, whichever side is contiguous.
      const u32 t = threadIdx.x + i * 256;
      const u32 xr = x_depth == 1 ? t / DEPTH : t % TILE, xk = x_depth == 1 ? t % DEPTH : t / TILE;
      const u32 wc = w_depth == 1 ? t / DEPTH : t % TILE, wk = w_depth == 1 ? t % DEPTH : t / TILE;
      a[i] = first_row + xr < real && at + xk < depth
                 ? widen(x[(first_row + xr) * x_row + (at + xk) * x_depth]) : 0.0f;
      b[i] = first_column + wc < columns && at + wk < depth
                 ? widen(w[(first_column + wc) * w_column + (at + wk) * w_depth]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 t = threadIdx.x + i * 256;
      if (x_depth == 1) xs[t % DEPTH][t / DEPTH] = a[i]; else xs[t / TILE][t % TILE] = a[i];
      if (w_depth == 1) ws[t % DEPTH][t / DEPTH] = b[i]; else ws[t / TILE][t % TILE] = b[i];
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      if (at + d >= depth) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sum[i][j] = fmaf(xs[d][down * 4 + i], ws[d][across * 4 + j], sum[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 row = first_row + down * 4 + i, column = first_column + across * 4 + j;
      if (row < real && column < columns) narrow(y[(u64)row * columns + column], sum[i][j]);
    }
}

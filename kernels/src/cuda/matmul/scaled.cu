// y[m, n] = sum over k of x[m, k] * (code - zero)[n, k] * scale in float, where scale and zero are those
// of the block of n and k: 64 x 64 results of a block, 4 x 4 of a thread, k in order. Each result is
// summed alone, so it does not depend on how many rows there are.
enum { TILE = 64, DEPTH = 16 };

extern "C" __global__ void __launch_bounds__(256) scaled_matmul(
    const X* x, const u8* codes, const S* scales,
#if HAS_ZEROS
    const u8* zeros,
#endif
    Y* y, const i32* counts, u32 rows, u32 columns, u32 depth,
    u32 real_base, u32 real_factor, u32 real_symbol, u32 block_rows, u32 block_columns) {
  PW_LAUNCH_DEPENDENTS();
  __shared__ float xs[DEPTH][TILE + 4], ws[DEPTH][TILE + 4];
  PW_WAIT();
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = real < rows ? real : rows;
  const u32 first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
  if (first_row >= real) return;
  const u32 groups = (depth + block_columns - 1) / block_columns;
  const u64 line = ((u64)depth * CODE_BITS + 7) / 8;
#if HAS_ZEROS
  const u64 zero_line = ((u64)groups * CODE_BITS + 7) / 8;
#endif
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
      const u32 t = threadIdx.x + i * 256;
      const u32 k = at + t % DEPTH, row = first_row + t / DEPTH, column = first_column + t / DEPTH;
      a[i] = row < real && k < depth ? widen(x[(u64)row * depth + k]) : 0.0f;
      b[i] = 0.0f;
      if (column < columns && k < depth) {
        const u32 of_row = column / block_rows, group = k / block_columns;
        b[i] = number_of(code_at(codes + column * line, k));
#if HAS_ZEROS
        b[i] -= number_of(code_at(zeros + of_row * zero_line, group));
#endif
        b[i] *= widen(scales[(u64)of_row * groups + group]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 t = threadIdx.x + i * 256;
      xs[t % DEPTH][t / DEPTH] = a[i];
      ws[t % DEPTH][t / DEPTH] = b[i];
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

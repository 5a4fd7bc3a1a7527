// y[m, n] = sum over k of x[m, k] * w[n, k] for at most M rows, on tensor cores: a tile is 16 rows
// of w as the left operand, x is the right one. The order of k within a sum is free as long as
// both operands agree, so a lane takes 8 neighbouring k of its row of each: 16 bytes make two
// products of depth 16 and no lane exchanges anything.
//
// The block's warps share k in slices of STEPS times 32. A warp keeps AHEAD steps of w in flight
// (TILES tiles of them where a slice is short), the first of them before the wait. Its slice of x
// stays on the multiprocessor: STAGED fragments in shared memory, each read by the lane alone that
// copied it, and HELD in registers where that has no room. The warps' sums meet in shared memory
// and are added in the order of the warps, so that a result depends on M and k, not on the grid.
//
// Blocks take even shares of 8 rows of w, not of 16: the last tile of an odd share has its lower
// half alone, and no block has more than 8 rows more than another.
enum { WARPS = 16, N = M / 8, PART = 16 * M };

extern "C" __global__ void __launch_bounds__(512, 1) matmul(
    const X* x, const W* w, Y* y, const i32* counts,
    u32 rows, u32 columns, u32 depth, u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4;
  const u32 eights = blocks_for(columns, 8), share = eights / gridDim.x, odd = eights % gridDim.x;
  const u32 first = (share * blockIdx.x + min(blockIdx.x, odd)) * 8;
  const u32 end = min(first + (share + (blockIdx.x < odd)) * 8, columns);
  const u32 start = (warp * STEPS * 4 + lane % 4) * 8;

  // Where the lane's next load is: steps of a tile in order, then the next tile.
  u32 row = first + group;
  const W* from = w + (u64)row * depth + start;
  Bytes16 lower[AHEAD], upper[AHEAD];
  auto fetch = [&](int slot, int step) {
    const bool there = WHOLE || start + step * 32 < depth;
    lower[slot] = load_weight_if(there && row < end, from + step * 32);
    upper[slot] = load_weight_if(there && row + 8 < end, from + (u64)depth * 8 + step * 32);
    if (step == STEPS - 1) {
      row += 16;
      from += (u64)depth * 16;
    }
  };
  // A branch of their own: in the block of the wait, the assembler would sink them below it.
  if (first < end) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) fetch(i, i % ROUND);
  }
  PW_WAIT();

  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = real < rows ? real : rows;
  Bytes16 held[HELD + 1];
  Bytes16* const own = staged + warp * STAGED * 32 + lane;
#pragma unroll
  for (int i = 0; i < STAGED + HELD; ++i) {
    const u32 k = start + i / N * 32, m = i % N * 8 + group;
    const bool there = (WHOLE || k < depth) && m < real;
    const X* const at = there ? x + (u64)m * depth + k : x;
    if (i < STAGED) {
      copy_async_if(there, own + i * 32, at);
    } else {
      const Bytes16 part = *(const Bytes16*)at;
      held[i - STAGED] = there ? part : Bytes16{0, 0, 0, 0};
    }
  }
  if (STAGED) copies_done();

  float* const parts = (float*)(staged + WARPS * STAGED * 32);
  u32 buffer = 0;
  for (u32 tile = first; tile < end; tile += TILES * 16) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      if (tile + t * 16 < end) {
        float sum[N][4];
#pragma unroll
        for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
#pragma unroll
        for (int step = 0; step < ROUND; ++step) {
          const int slot = (t * ROUND + step) % AHEAD, next = (step + AHEAD) % ROUND;
          if (step < STEPS) {
            const Bytes16 a = lower[slot], c = upper[slot];
#pragma unroll
            for (int n = 0; n < N; ++n) {
              const int i = step * N + n;
              const Bytes16 b = i < STAGED ? own[i * 32] : held[i < STAGED ? 0 : i - STAGED];
              multiply_add<X>(sum[n], a.x, c.x, a.y, c.y, b.x, b.y);
              multiply_add<X>(sum[n], a.z, c.z, a.w, c.w, b.z, b.w);
            }
          }
          if (next < STEPS) fetch(slot, next);
        }
        // A warp's part is [n][row of the tile][8], each row's 8 turned by its number so that
        // neither the fragments that are written nor the columns that are read share banks.
        float* const part = parts + buffer * WARPS * PART;
        buffer ^= BUFFERS - 1;
        if (BUFFERS == 1) __syncthreads();
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const u32 i = half * 8 + group, at = lane % 4 * 2 ^ i / 4 * 2;
            *(Bytes8*)(part + warp * PART + n * 128 + i * 8 + at) =
                Bytes8{__float_as_uint(sum[n][half * 2]), __float_as_uint(sum[n][half * 2 + 1])};
          }
        __syncthreads();
        const u32 i = threadIdx.x % 16, m = threadIdx.x / 16, to = tile + t * 16 + i;
        if (m < real && to < end) {
          const float* terms = part + m / 8 * 128 + i * 8 + (m % 8 ^ i / 4 * 2);
          float total = terms[0];
#pragma unroll
          for (int warp = 1; warp < WARPS; ++warp) total += terms[warp * PART];
          narrow(y[(u64)m * columns + to], total);
        }
      }
    }
  }
}

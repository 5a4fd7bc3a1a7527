// y[m, n] = sum over k of x[m, k] * w[n, k] for at most M rows of x, on tensor cores: a tile is 16
// rows of w as the left operand, x is the right one. A warp copies slices of w and x to a ring in
// shared memory, of w before the wait; K_WARPS times TILE_WARPS others multiply, some steps of each
// slice and some of its tiles each. What those of one tile made is added in their order, so that a
// result depends on M and k, not on the grid.
//
// With a region before the product, each block makes all rows of x in shared memory of its own, while
// weights come in, and the ring is of w alone.
//
// Blocks take even shares of 8 columns, and of a share so many at a time that the ring holds
// several slices. PAIRED columns are 8 rows of w and the same of its second half, one tile.
//
// What is before this: the ring (`ring_copies.cuh`), and how a warp multiplies a part of a slot (`ring_floats.cuh`,
// `ring_codes.cuh`).

DEVICE Pack<Y, 8> eight_sums(const float* from) {
  float sum[8];
#pragma unroll
  for (int k = 0; k < K_WARPS; ++k) {
    Pack<float, 8> part;
    load<16>(part, from + k * (M * STRIDE));
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = k == 0 ? part.at[i] : sum[i] + part.at[i];
  }
  Pack<Y, 8> rounded;
  round_eight(rounded, sum);
  return rounded;
}

DEVICE void multiply_slices(const Problem& p, const Bytes16* ring, float* parts, const Bytes16* made, const Scales& scales, FINISH_PARAMS) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, of_k = warp % K_WARPS, of_tiles = warp / K_WARPS;
  // A row of a box has its 8 chunks of 16 bytes swapped by its number.
  const u32 row = lane % 8;
  Slot slot = {0, 0};
#pragma unroll 1
  for (u32 pass = 0; pass < p.passes; ++pass) {
    const u32 begin = begin_of(p, pass), units = begin_of(p, pass + 1) - begin, eights = units * HALVES;
    float sum[OWN][M / 8][4];
    Part part = {nullptr, nullptr, made, 0, begin, units, of_k, of_tiles};
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
      const u32 eight = (of_tiles + own * TILE_WARPS) * 2 + lane / 8 % 2;
      // An odd share ends with half a tile, whose other half is not looked at.
      const u32 unit = min(eight / HALVES, units - 1);
      const Boxes boxes(unit, units);
      part.row_at[own] = (PAIRED ? eight % 2 * units * W_SLICES : 0) * 64 + (boxes.first * W_SLICES + unit - boxes.first) * 64 + row * 8;
      part.apart[own] = boxes.rows * 64;
    }
#pragma unroll
    for (int i = 0; i < OWN * (M / 8) * 4; ++i) (&sum[0][0][0])[i] = 0.0f;
#pragma unroll 1
    for (u32 chunk = 0; chunk < p.chunks; ++chunk, slot.next(p)) {
      barrier_wait(full(p, slot.index), slot.phase);
      part.of_w = ring + slot.index * (p.slot_bytes / 16);
      part.of_x = part.of_w + p.of_w / 16;
      part.chunk = chunk;
      multiply_part(sum, p, part, scales);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty(p, slot.index));
    }
    // All have read the sums that were here before.
    threads_meet<THREADS>(1);
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
      const u32 tile = of_tiles + own * TILE_WARPS;
      if (tile < TILES) {
        const float scale[2] = {scales.of_sums(p, begin, units, tile, 0), scales.of_sums(p, begin, units, tile, 1)};
        float* const to = parts + of_k * (M * STRIDE) + tile * 16 + lane / 4;
#pragma unroll
        for (int n = 0; n < M / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) to[(n * 8 + lane % 4 * 2 + i % 2) * STRIDE + i / 2 * 8] = sum[own][n][i] * scale[i / 2];
      }
    }
    threads_meet<THREADS>(1);
    for (u32 i = threadIdx.x; i < p.real * units; i += THREADS) {
      const u32 m = i / units, unit = i - m * units;
      const Place place(p.columns, (begin + unit) * 8);
      const u64 at = place.at(m);
      Columns columns;
      Beside beside;
      load_columns(FINISH_ARGS, place.part, place.column, columns);
      load_beside(FINISH_ARGS, at, beside);
      const float* const from = parts + m * STRIDE + unit * (8 * HALVES);
      const Pack<Y, 8> first = eight_sums(from), second = PAIRED ? eight_sums(from + 8) : first;
      store<16>(result_of(FINISH_ARGS, place.part) + at, finish(place.part, first, second, columns, beside));
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, BLOCKS) matmul(
    X_PARAMS, W_PARAMS, FINISH_PARAMS,
    const i32* counts, u32 rows, u32 columns, u32 depth,
    u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  __shared__ u64 barriers[2 * MOST_SLOTS];
  // No kernel of a step writes its counts.
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  Problem p;
  p.real = min(real, rows);
  p.columns = columns / HALVES;
  p.depth = depth;
  p.chunks = blocks_for(depth, SLICES * 64);
  p.barriers = shared_address(barriers);
  const u32 aligned = (1024 - shared_address(staged) % 1024) % 1024;
  p.ring = shared_address(staged) + aligned;
  const u32 all = p.columns / 8, share = all / gridDim.x, odd = all % gridDim.x;
  p.first = share * blockIdx.x + min(blockIdx.x, odd);
  p.units = share + (blockIdx.x < odd);
  if (p.units == 0) {
    PW_WAIT();
    return;
  }
  p.passes = blocks_for(p.units, UNITS);
  p.most = blocks_for(p.units, p.passes);
  p.of_w = p.most * (HALVES * W_SLICES * BOX);
  p.slot_bytes = p.of_w + X_BYTES;
  p.slots = min((RING_BYTES - scale_bytes(p)) / p.slot_bytes, (u32)MOST_SLOTS);
  if (threadIdx.x == 0) {
    for (int i = 0; i < MOST_SLOTS; ++i) {
      barrier_init(full(p, i), 1);
      barrier_init(empty(p, i), WARPS);
    }
    barriers_made();
  }
  __syncthreads();
  const Bytes16* const ring = staged + aligned / 16;
  u8* const after_ring = (u8*)ring + RING_BYTES;
  X* const made = (X*)(after_ring + SUMS_BYTES);
  if (threadIdx.x >= THREADS) {
#if MADE_BYTES
    const TensorMap* const of_x = nullptr;
#else
    const TensorMap* const of_x = &x;
#endif
    if (threadIdx.x == THREADS) fill_ring(p, of_x, w8, w16, w32);
    else PW_WAIT();
    return;
  }
#if MADE_BYTES
  Before before;
  before.ahead(X_ARGS, made);
#endif
  const Scales scales(p, after_ring W_ARGS);
  PW_WAIT();
#if MADE_BYTES
  before.rows(X_ARGS, made, counts, p.real, (u8*)made + MADE_BYTES);
  // Groups of threads have met at the barriers before this one.
  threads_meet<THREADS>(15);
#endif
  multiply_slices(p, ring, (float*)after_ring, (const Bytes16*)made, scales, FINISH_ARGS);
}

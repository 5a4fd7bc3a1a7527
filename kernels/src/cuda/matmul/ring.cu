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
enum { BOX = 8 * 128, HALVES = PAIRED + 1, TILES = (UNITS * HALVES + 1) / 2, OWN = (TILES + TILE_WARPS - 1) / TILE_WARPS,
       WARPS = K_WARPS * TILE_WARPS, THREADS = WARPS * 32, MOST_SLOTS = 16,
       // A row of sums: so long that neither fragments nor eights of them share banks.
       STRIDE = TILES * 16 + 4,
       // Those of a slot that are of x.
       X_BYTES = MADE_BYTES ? 0 : SLICES * M * 128,
       // Between rows of x that a block made, in chunks of 16 bytes.
       PITCH = MADE_BYTES / (M * 16) };

struct Problem {
  u32 real, columns, chunks, ring, barriers;
  // The block's share, and what it takes at a time at the most, all in units of 8 columns.
  u32 first, units, passes, most;
  u32 of_w, slot_bytes, slots;
};

// Columns of a pass.
DEVICE u32 begin_of(const Problem& p, u32 pass) { return p.first + p.units * pass / p.passes; }

// The box of `rows` eights, of those that units are copied in, that a unit is in: where it begins
// and how many it has.
struct Boxes {
  u32 first, rows;
  DEVICE Boxes(u32 unit, u32 units) : first(0), rows(4) {
    while (units - first < rows || unit >= first + rows) {
      if (units - first < rows) rows /= 2;
      else first += rows;
    }
  }
};

// A place in the ring.
struct Slot {
  u32 index, phase;
  DEVICE void next(const Problem& p) {
    if (++index == p.slots) { index = 0; phase ^= 1; }
  }
};

DEVICE u32 full(const Problem& p, u32 slot) { return p.barriers + slot * 8; }
DEVICE u32 empty(const Problem& p, u32 slot) { return p.barriers + (MOST_SLOTS + slot) * 8; }

DEVICE void fill_ring(const Problem& p, const TensorMap* x, const TensorMap& w8, const TensorMap& w16, const TensorMap& w32) {
  const u32 all = p.passes * p.chunks;
  u32 pass = 0, chunk = 0, begin = p.first, units = begin_of(p, 1) - begin;
  Slot slot = {0, 0};
  auto of_w = [&]() {
    barrier_wait(empty(p, slot.index), slot.phase ^ 1);
    const u32 barrier = full(p, slot.index), slice = chunk * SLICES;
    barrier_arrive_expecting(barrier, units * (HALVES * SLICES * BOX) + X_BYTES);
    u32 to = p.ring + slot.index * p.slot_bytes, unit = 0;
    auto copy = [&](const TensorMap& w, u32 eights) {
#pragma unroll
      for (u32 half = 0; half < HALVES; ++half)
        copy_slices_once(to + half * units * (SLICES * BOX), w, half * p.columns + (begin + unit) * 8, slice, barrier);
      to += eights * (SLICES * BOX);
      unit += eights;
    };
#pragma unroll 1
    while (units - unit >= 4) copy(w32, 4);
    if (units - unit >= 2) copy(w16, 2);
    if (units - unit >= 1) copy(w8, 1);
  };
  auto of_x = [&](const Slot& slot, u32 chunk) {
    if (X_BYTES) copy_slices(p.ring + slot.index * p.slot_bytes + p.of_w, *x, 0, chunk * SLICES, full(p, slot.index));
  };
  auto advance = [&]() {
    slot.next(p);
    if (++chunk == p.chunks) {
      chunk = 0;
      begin = begin_of(p, ++pass);
      units = begin_of(p, pass + 1) - begin;
    }
  };
  // The first weights are on their way before the wait.
  const u32 ahead = min(all, p.slots);
#pragma unroll 1
  for (u32 i = 0; i < ahead; ++i, advance()) of_w();
  PW_WAIT();
  Slot early = {0, 0};
  u32 of_early = 0;
#pragma unroll 1
  for (u32 i = 0; i < ahead; ++i, early.next(p)) {
    of_x(early, of_early);
    if (++of_early == p.chunks) of_early = 0;
  }
#pragma unroll 1
  for (u32 i = ahead; i < all; ++i, advance()) {
    of_w();
    of_x(slot, chunk);
  }
}

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

DEVICE void multiply_slices(const Problem& p, const Bytes16* ring, float* parts, const Bytes16* made, FINISH_PARAMS) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, of_k = warp % K_WARPS, of_tiles = warp / K_WARPS;
  // A row of a box has its 8 chunks of 16 bytes swapped by its number.
  const u32 row = lane % 8;
  Slot slot = {0, 0};
#pragma unroll 1
  for (u32 pass = 0; pass < p.passes; ++pass) {
    const u32 begin = begin_of(p, pass), units = begin_of(p, pass + 1) - begin, eights = units * HALVES;
    float sum[OWN][M / 8][4];
    // Where this lane's row of each tile is in a slot, and how far slices are from each other.
    u32 row_at[OWN], apart[OWN];
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
      const u32 eight = (of_tiles + own * TILE_WARPS) * 2 + lane / 8 % 2;
      // An odd share ends with half a tile, whose other half is not looked at.
      const u32 unit = min(eight / HALVES, units - 1);
      const Boxes boxes(unit, units);
      row_at[own] = (PAIRED ? eight % 2 * units * SLICES : 0) * 64 + (boxes.first * SLICES + unit - boxes.first) * 64 + row * 8;
      apart[own] = boxes.rows * 64;
    }
#pragma unroll
    for (int i = 0; i < OWN * (M / 8) * 4; ++i) (&sum[0][0][0])[i] = 0.0f;
#pragma unroll 1
    for (u32 chunk = 0; chunk < p.chunks; ++chunk, slot.next(p)) {
      barrier_wait(full(p, slot.index), slot.phase);
      const Bytes16* const of_w = ring + slot.index * (p.slot_bytes / 16);
      const Bytes16* const of_x = of_w + p.of_w / 16;
#pragma unroll
      for (int turn = 0; turn < SLICES * 2 / K_WARPS; ++turn) {
        const u32 step = turn * K_WARPS + of_k, slice = step / 2, half = step % 2 * 4;
        u32 b[M / 8][4];
#pragma unroll
        for (int n = 0; n < M / 8; ++n)
          load_matrices(b[n], MADE_BYTES ? made + (n * 8 + row) * PITCH + (chunk * SLICES + slice) * 8 + half + lane / 8
                                         : of_x + slice * (M * 8) + n * 64 + row * 8 + (half + lane / 8 ^ row));
#pragma unroll
        for (int own = 0; own < OWN; ++own) {
          const u32 tile = of_tiles + own * TILE_WARPS;
          if (tile * 2 < eights) {
            const Bytes16* const of_tile = of_w + row_at[own] + slice * apart[own];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              u32 a[4];
              load_matrices(a, of_tile + (half + k * 2 + lane / 16 ^ row));
#pragma unroll
              for (int n = 0; n < M / 8; ++n) multiply_add<X>(sum[own][n], a[0], a[1], a[2], a[3], b[n][k * 2], b[n][k * 2 + 1]);
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty(p, slot.index));
    }
    // All have read the sums that were here before.
    threads_meet<THREADS>(1);
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
      const u32 tile = of_tiles + own * TILE_WARPS;
      if (tile < TILES) {
        float* const part = parts + of_k * (M * STRIDE) + tile * 16 + lane / 4;
#pragma unroll
        for (int n = 0; n < M / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) part[(n * 8 + lane % 4 * 2 + i % 2) * STRIDE + i / 2 * 8] = sum[own][n][i];
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
    X_PARAMS, const __grid_constant__ TensorMap w8, const __grid_constant__ TensorMap w16,
    const __grid_constant__ TensorMap w32, FINISH_PARAMS,
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
  p.of_w = p.most * (HALVES * SLICES * BOX);
  p.slot_bytes = p.of_w + X_BYTES;
  p.slots = min((u32)RING_BYTES / p.slot_bytes, (u32)MOST_SLOTS);
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
  PW_WAIT();
#if MADE_BYTES
  before.rows(X_ARGS, made, counts, p.real, (u8*)made + MADE_BYTES);
  // Groups of threads have met at the barriers before this one.
  threads_meet<THREADS>(15);
#endif
  multiply_slices(p, ring, (float*)after_ring, (const Bytes16*)made, FINISH_ARGS);
}

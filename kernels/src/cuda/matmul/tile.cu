// y[m, n] = sum over k of x[m, k] * w[n, k] on Hopper's tensor cores, k in order. Blocks stay and
// take tiles of 128 rows and COLUMNS columns in turn: a warp copies slices of x and w to a ring in
// shared memory, two warpgroups multiply 64 rows each and finish them. Which tiles there are, and
// how wide they are, follows from the true rows alone: padding is neither copied nor computed.
//
// The widest tiles are of two blocks, neighbours that each copy half of what they share to both.
// PAIRED tiles hold columns n and n + columns / 2 at the same place of their two halves.
enum { ROWS = 128, DEPTH = 64, STEP_BYTES = DEPTH * 2, HALF_BYTES = ROWS / 2 * STEP_BYTES, BOX = 32,
       RING_BYTES = 200 << 10, MOST_SLOTS = 8, WARPS = 8, TALL = 16, WIDEST = 256 };

struct Problem {
  const TensorMap* x;
  const TensorMap* w;
  u32 real, columns, depth, ring, barriers, rank;
};

// The tiles of the grid in order: down first, so that weights pass once where the rows stay in the
// cache, in bands of TALL tiles.
template <int COLUMNS> struct Tiles {
  enum { SHARED = COLUMNS == WIDEST, UNIT = SHARED ? CLUSTER : 1, SPAN = COLUMNS / (PAIRED + 1),
         SLOT = 2 * HALF_BYTES + COLUMNS * STEP_BYTES,
         SLOTS = RING_BYTES / SLOT < MOST_SLOTS ? RING_BYTES / SLOT : MOST_SLOTS };
  u32 down, across, high;
  bool by_rows;
  DEVICE Tiles(const Problem& p) {
    down = blocks_for(p.real, ROWS);
    across = blocks_for(p.columns, SPAN);
    by_rows = down % UNIT == 0;
    high = by_rows ? TALL / UNIT : TALL;
    if (by_rows) down /= UNIT; else across = blocks_for(across, UNIT);
  }
  DEVICE u32 first() const { return blockIdx.x / UNIT; }
  DEVICE u32 step() const { return gridDim.x / UNIT; }
  DEVICE u32 count() const { return down * across; }
  DEVICE void at(u32 tile, u32 rank, u32& row, u32& column) const {
    const u32 band = tile / (high * across), within = tile - band * high * across;
    const u32 left = down - band * high, height = left < high ? left : high;
    row = band * high + within % height;
    column = within / height;
    if (SHARED && by_rows) row = row * UNIT + rank;
    if (SHARED && !by_rows) column = column * UNIT + rank;
    row *= ROWS;
    column *= SPAN;
  }
};

template <int SLOTS> struct Slot {
  u32 index, phase;
  DEVICE void next() {
    if (++index == SLOTS) { index = 0; phase ^= 1; }
  }
};

DEVICE u32 full(const Problem& p, u32 slot) { return p.barriers + slot * 8; }
DEVICE u32 empty(const Problem& p, u32 slot) { return p.barriers + (MOST_SLOTS + slot) * 8; }

template <int COLUMNS> DEVICE void copy_tiles(const Problem& p) {
  typedef Tiles<COLUMNS> T;
  const T tiles(p);
  const u32 steps = blocks_for(p.depth, DEPTH);
  const bool shares_w = T::UNIT == 2 && tiles.by_rows, shares_x = T::UNIT == 2 && !tiles.by_rows;
  auto halves = [&](u32 row) { return row + ROWS / 2 < p.real ? 2u : 1u; };
  auto of_w = [&](const Slot<T::SLOTS>& slot, u32 row, u32 column, u32 step) {
    barrier_wait(empty(p, slot.index), slot.phase ^ 1);
    barrier_arrive_expecting(full(p, slot.index), halves(row) * HALF_BYTES + COLUMNS * STEP_BYTES);
    const u32 to = p.ring + slot.index * T::SLOT + 2 * HALF_BYTES;
    const u32 boxes = shares_w ? COLUMNS / BOX / 2 : COLUMNS / BOX, first = shares_w ? p.rank * boxes : 0;
    for (u32 i = first; i < first + boxes; ++i) {
      const u32 at = to + i * BOX * STEP_BYTES;
      const u32 line = column + i * BOX + (i * BOX >= T::SPAN ? p.columns - T::SPAN : 0);
      if (shares_w) copy_box_to(at, *p.w, step * DEPTH, line, full(p, slot.index), 3);
      else copy_box(at, *p.w, step * DEPTH, line, full(p, slot.index));
    }
  };
  auto of_x = [&](const Slot<T::SLOTS>& slot, u32 row, u32 step) {
    const u32 to = p.ring + slot.index * T::SLOT;
    for (u32 half = 0; half < halves(row); ++half) {
      const u32 at = to + half * HALF_BYTES, line = row + half * (ROWS / 2);
      if (!shares_x) copy_box(at, *p.x, step * DEPTH, line, full(p, slot.index));
      else if (half == p.rank) copy_box_to(at, *p.x, step * DEPTH, line, full(p, slot.index), 3);
    }
  };
  u32 row, column, tile = tiles.first();
  Slot<T::SLOTS> slot = {0, 0};
  // The first weights are on their way before the wait.
  const u32 ahead = tile < tiles.count() ? min(steps, (u32)T::SLOTS) : 0;
  if (ahead) {
    tiles.at(tile, p.rank, row, column);
    Slot<T::SLOTS> early = slot;
    for (u32 step = 0; step < ahead; ++step, early.next()) of_w(early, row, column, step);
  }
  PW_WAIT();
  for (u32 given = ahead; tile < tiles.count(); tile += tiles.step(), given = 0) {
    tiles.at(tile, p.rank, row, column);
    for (u32 step = 0; step < steps; ++step, slot.next()) {
      if (step >= given) of_w(slot, row, column, step);
      of_x(slot, row, step);
    }
  }
}

// Of four pairs of columns in each of four lanes, the eight neighbouring columns of one.
DEVICE Bytes16 neighbours(u32 a, u32 b, u32 c, u32 d) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  u32 s = from_lane(odd ? a : b, 1), t = from_lane(odd ? c : d, 1);
  if (odd) { a = s; c = t; } else { b = s; d = t; }
  s = from_lane(high ? a : c, 2), t = from_lane(high ? b : d, 2);
  if (high) { a = s; b = t; } else { c = s; d = t; }
  return Bytes16{a, b, c, d};
}
DEVICE Bytes16 eight_of(const float* sum) {
  return neighbours(pair_of<Y>(sum[0], sum[1]), pair_of<Y>(sum[4], sum[5]),
                    pair_of<Y>(sum[8], sum[9]), pair_of<Y>(sum[12], sum[13]));
}

template <int COLUMNS> DEVICE void multiply_tiles(const Problem& p, FINISH_PARAMS) {
  typedef Tiles<COLUMNS> T;
  const T tiles(p);
  const u32 steps = blocks_for(p.depth, DEPTH), lane = threadIdx.x % 32, half = threadIdx.x / 128;
  PW_WAIT();
  Slot<T::SLOTS> slot = {0, 0};
  // Each warp for itself, at every block that copies to the slot.
  auto release = [&](u32 index) {
    if (lane < T::UNIT) barrier_arrive_at(empty(p, index), T::UNIT == 1 ? p.rank : lane);
  };
  for (u32 tile = tiles.first(); tile < tiles.count(); tile += tiles.step()) {
    u32 row, column;
    tiles.at(tile, p.rank, row, column);
    row += half * (ROWS / 2);
    if (row >= p.real || column >= p.columns) {
      for (u32 step = 0; step < steps; ++step, slot.next()) {
        barrier_wait(full(p, slot.index), slot.phase);
        release(slot.index);
      }
      continue;
    }
    float sum[COLUMNS / 2];
    u32 last = 0;
    for (u32 step = 0; step < steps; ++step, slot.next()) {
      barrier_wait(full(p, slot.index), slot.phase);
      const u32 at = p.ring + slot.index * T::SLOT;
      const u64 a = matrix_at(at + half * HALF_BYTES), b = matrix_at(at + 2 * HALF_BYTES);
      products_begin();
#pragma unroll
      for (int k = 0; k < DEPTH / 16; ++k) multiply_add_tile(sum, a + k * 2, b + k * 2, step | k);
      products_end();
      if (step) {
        products_done_but<1>();
        release(last);
      }
      last = slot.index;
    }
    products_done_but<0>();
    release(last);
    row += threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const u32 m = row + down * 8;
#pragma unroll
      for (int i = 0; i < T::SPAN / 32; ++i) {
        const float* s = sum + i * 16 + down * 2;
        const Bytes16 first = eight_of(s), second = PAIRED ? eight_of(s + T::SPAN / 2) : first;
        const u32 n = column + i * 32 + lane % 4 * 8;
        if (m < p.real && n < p.columns) finish(FINISH_ARGS, (u64)m * p.columns + n, first, second);
      }
    }
  }
}

// What a width costs: rounds of tiles, each as long as its columns and what every tile takes.
template <int COLUMNS> DEVICE void consider(const Problem& p, u32& width, u32& least) {
  const Tiles<COLUMNS> tiles(p);
  const u32 cost = blocks_for(tiles.count(), tiles.step()) * (COLUMNS + 16);
  if (cost < least) { least = cost; width = COLUMNS; }
}

extern "C" __global__ void __launch_bounds__(384, 1) matmul(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, FINISH_PARAMS,
    const i32* counts, u32 rows, u32 columns, u32 depth,
    u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 shared[];
  __shared__ u64 barriers[2 * MOST_SLOTS];
  // No kernel of a step writes its counts.
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = min(real, rows);
  const Problem p = {&x, &w, real, columns / (PAIRED + 1), depth,
                     (shared_address(shared) + 1023) / 1024 * 1024, shared_address(barriers),
                     CLUSTER == 1 ? 0 : cluster_rank()};
  u32 width = 0, least = 0xffffffffu;
  consider<256>(p, width, least);
  consider<192>(p, width, least);
  consider<128>(p, width, least);
#if !PAIRED
  consider<96>(p, width, least);
#endif
  if (threadIdx.x == 0) {
    for (int i = 0; i < MOST_SLOTS; ++i) {
      barrier_init(full(p, i), 1);
      barrier_init(empty(p, i), width == WIDEST ? WARPS * CLUSTER : WARPS);
    }
    barriers_made();
  }
  if (CLUSTER == 1) __syncthreads(); else cluster_meet();
  if (threadIdx.x >= WARPS * 32) {
    registers_down<40>();
    if (threadIdx.x == WARPS * 32) {
      if (width == 256) copy_tiles<256>(p);
      else if (width == 192) copy_tiles<192>(p);
      else if (width == 128) copy_tiles<128>(p);
#if !PAIRED
      else copy_tiles<96>(p);
#endif
    }
  } else {
    registers_up<232>();
    if (width == 256) multiply_tiles<256>(p, FINISH_ARGS);
    else if (width == 192) multiply_tiles<192>(p, FINISH_ARGS);
    else if (width == 128) multiply_tiles<128>(p, FINISH_ARGS);
#if !PAIRED
    else multiply_tiles<96>(p, FINISH_ARGS);
#endif
  }
  // No block leaves while another of its cluster may write to it.
  if (CLUSTER > 1) {
    __syncwarp();
    cluster_meet();
  }
}

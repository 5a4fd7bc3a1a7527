// y[m, n] = sum over k of x[m, k] * w[n, k] on Hopper's tensor cores, k in order. Blocks stay and
// take tiles of 128 rows of w and some rows of x in turn: a warp copies slices of both to a ring in
// shared memory, two warpgroups multiply 64 rows of w each, and what they made is finished by rows of
// y: by three warps while the next tile is multiplied where that takes as long, else by themselves. How
// many rows of x a tile has follows from the true rows alone: a multiple of 16 that leaves little of
// the device and of the last tile idle. Neighbouring blocks have the same rows of x, or of w where that
// leaves less idle, and copy half of them to each other.
//
// PAIRED tiles hold 64 rows of w, and the same of its second half; both are finished together.
//
// STACKS says whether it may leave less idle that neighbours have rows of w in common, and
// LONG_STEPS in how many steps of k three warps have finished a tile.
enum { LINES = 128, DEPTH = 64, STEP_BYTES = DEPTH * 2, HALF_BYTES = LINES / 2 * STEP_BYTES,
       MOST_SLOTS = 8, WARPS = 8, MOST_ROWS = 256, SPAN = LINES / (PAIRED + 1),
       // What is made is in lines of 128 bytes for each warpgroup that multiplies: a part of a tile where
       // those that made it finish it, a whole one beside the next.
       PART = 128, PART_BYTES = PART * 128, SHARED_BYTES = 224 << 10,
       // Threads that finish beside the products, and those that made a line. Each takes a chunk of 8
       // columns of a line in turn.
       FINISHING = 96, MAKING = 128 * (PAIRED + 1),
       // Neighbouring tiles of rows that take a row of w in turn.
       TALL = 8 };

struct Problem {
  u32 real, columns, depth, ring, barriers, rank;
  // Rows of x of a tile, and what follows: bytes of a slice and how many the ring holds.
  u32 height, slot_bytes, slots;
  // Where what the first warpgroup made is finished, and how far behind it the other's is.
  u32 staged, apart;
  // Whether neighbouring blocks have the same rows of w, and tiles are finished beside the next.
  bool stacked, beside;
};

// The tiles of the grid in order: down first, so that weights pass once where the rows stay in the
// cache, in bands of TALL tiles.
struct Tiles {
  // Of neighbours together; those of a block begin at its part of them.
  u32 rows, columns, down, across;
  DEVICE Tiles(const Problem& p, u32 height, bool stacked)
      : rows(stacked ? height * CLUSTER : height), columns(stacked ? SPAN : SPAN * CLUSTER),
        down(blocks_for(p.real, rows)), across(blocks_for(p.columns, columns)) {}
  DEVICE u32 count() const { return down * across; }
  DEVICE u32 first() const { return blockIdx.x / CLUSTER; }
  DEVICE u32 step() const { return gridDim.x / CLUSTER; }
  DEVICE void at(u32 tile, const Problem& p, u32& row, u32& column) const {
    const u32 band = tile / (TALL * across), within = tile - band * TALL * across;
    const u32 left = down - band * TALL, height = left < TALL ? left : TALL;
    row = (band * TALL + within % height) * rows + (p.stacked ? p.rank * p.height : 0);
    column = within / height * columns + (p.stacked ? 0 : p.rank * SPAN);
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
// That a warpgroup's half of a tile is made; that it is finished.
DEVICE u32 made(const Problem& p, u32 half) { return p.barriers + (2 * MOST_SLOTS + half) * 8; }
DEVICE u32 finished(const Problem& p, u32 half) { return p.barriers + (2 * MOST_SLOTS + 2 + half) * 8; }

DEVICE void copy_tiles(const Problem& p, const TensorMap& x, const TensorMap& w) {
  const Tiles tiles(p, p.height, p.stacked);
  const u32 steps = blocks_for(p.depth, DEPTH), all = (1 << CLUSTER) - 1;
  auto of_w = [&](const Slot& slot, u32 column, u32 step) {
    barrier_wait(empty(p, slot.index), slot.phase ^ 1);
    barrier_arrive_expecting(full(p, slot.index), p.slot_bytes);
    const u32 to = p.ring + slot.index * p.slot_bytes;
    const u32 second = column + (PAIRED ? p.columns : LINES / 2);
    if (p.stacked) {
      copy_box_to(to + p.rank * HALF_BYTES, w, step * DEPTH, p.rank ? second : column, full(p, slot.index), all);
    } else {
      copy_box(to, w, step * DEPTH, column, full(p, slot.index));
      copy_box(to + HALF_BYTES, w, step * DEPTH, second, full(p, slot.index));
    }
  };
  auto of_x = [&](const Slot& slot, u32 row, u32 step) {
    const u32 to = p.ring + slot.index * p.slot_bytes + 2 * HALF_BYTES, part = p.height / CLUSTER;
    if (p.stacked) {
#pragma unroll
      for (u32 i = 0; i < CLUSTER; ++i) copy_box(to + i * part * STEP_BYTES, x, step * DEPTH, row + i * part, full(p, slot.index));
    } else {
      copy_box_to(to + p.rank * part * STEP_BYTES, x, step * DEPTH, row + p.rank * part, full(p, slot.index), all);
    }
  };
  u32 row, column, tile = tiles.first();
  Slot slot = {0, 0};
  // The first weights are on their way before the wait, if no kernel of the step makes them.
  const u32 ahead = tile < tiles.count() && !W_MADE ? min(steps, p.slots) : 0;
  if (ahead) {
    tiles.at(tile, p, row, column);
    Slot early = slot;
#pragma unroll 1
    for (u32 step = 0; step < ahead; ++step, early.next(p)) of_w(early, column, step);
  }
  PW_WAIT();
#pragma unroll 1
  for (u32 given = ahead; tile < tiles.count(); tile += tiles.step(), given = 0) {
    tiles.at(tile, p, row, column);
#pragma unroll 1
    for (u32 step = 0; step < steps; ++step, slot.next(p)) {
      if (step >= given) of_w(slot, column, step);
      of_x(slot, row, step);
    }
  }
}

// Sums of a tile: each thread has of all rows of x every fourth pair, of two rows of w.
template <int ROWS> DEVICE void multiply_tile(float (&sum)[MOST_ROWS / 2], const Problem& p, Slot& slot, u32 half) {
  const u32 steps = blocks_for(p.depth, DEPTH), lane = threadIdx.x % 32;
  // Each warp for itself, at every block that copies to the slot.
  auto release = [&](u32 index) {
    if (lane < CLUSTER) barrier_arrive_at(empty(p, index), lane);
  };
  u32 last = 0;
#pragma unroll 1
  for (u32 step = 0; step < steps; ++step, slot.next(p)) {
    barrier_wait(full(p, slot.index), slot.phase);
    const u32 at = p.ring + slot.index * p.slot_bytes;
    const u64 a = matrix_at(at + half * HALF_BYTES), b = matrix_at(at + 2 * HALF_BYTES);
    products_begin();
#pragma unroll
    for (int k = 0; k < DEPTH / 16; ++k) multiply_add_tile((float (&)[ROWS / 2])sum, a + k * 2, b + k * 2, step | k);
    products_end();
    if (step) {
      products_done_but<1>();
      release(last);
    }
    last = slot.index;
  }
  products_done_but<0>((float (&)[ROWS / 2])sum);
  release(last);
}

// Where a chunk of 8 columns of a row lies, of 8 that are swapped by their row.
DEVICE u32 chunk_at(u32 rows, u32 row, u32 chunk) { return rows + row * 128 + (chunk ^ row % 8) * 16; }

// Sums of some rows of a part, rounded, to where they are finished.
DEVICE void stage_rows(u32 to, const float* sum, u32 rows) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const u32 at = chunk_at(to, lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < PART / 16; ++i) {
    const float* s = sum + i * 8;
    if (i * 16 < rows)
      store_transposed(at + i * (16 * 128), pair_of<Y>(s[0], s[1]), pair_of<Y>(s[2], s[3]), pair_of<Y>(s[4], s[5]), pair_of<Y>(s[6], s[7]));
  }
}

DEVICE Pack<Y, 8> eight_at(u32 from) {
  Pack<Y, 8> eight;
  *(Bytes16*)eight.at = load_shared(from);
  return eight;
}

// Rows from this one on that there are.
DEVICE u32 rows_from(const Problem& p, u32 row) { return p.real - min(p.real, row); }

// Finishes a half of a tile, or all of it where its halves are paired, by THREADS threads that meet
// by this number: ROWS at a time, after `stage` has put them where it says.
template <int THREADS, int ROWS, class Stage>
DEVICE void finish_half(const Problem& p, u32 half, u32 row, u32 column, u32 thread, u32 meeting, Stage stage, RESULT_MAPS FINISH_PARAMS) {
  enum { AT_ONCE = THREADS / 8, TURNS = ROWS / AT_ONCE };
  const u32 line = thread / 8, chunk = thread % 8, n = column + half * 64 + chunk * 8;
  const Place place(p.columns, n);
  Columns columns;
  if (n < p.columns) load_columns(FINISH_ARGS, place.part, place.column, columns);
  const TensorMap* result = 0;
#define CHOOSE_RESULT(PART) if (place.part == PART) result = &y##PART;
  EACH_RESULT(CHOOSE_RESULT)
#pragma unroll 1
  for (u32 down = 0; down < p.height; down += ROWS) {
    const u32 rows = min(rows_from(p, row + down), min(p.height - down, (u32)ROWS));
    // Of full boxes the copies take care; they leave out columns that there are not.
    const u32 boxed = BOXED ? rows / BOX_ROWS * BOX_ROWS : 0;
    auto there = [&](int turn) { return line + turn * AT_ONCE < rows && n < p.columns; };
    Beside beside[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; ++i)
      if (there(i)) load_beside(FINISH_ARGS, place.at(row + down + line + i * AT_ONCE), beside[i]);
    const u32 staged = stage(down, rows);
#pragma unroll TURNS_AT_ONCE
    for (int i = 0; i < TURNS; ++i) {
      const u32 r = line + i * AT_ONCE;
      if (!there(i) || (STORES && r < boxed)) continue;
      const u32 at = chunk_at(staged, r, chunk);
      const Pack<Y, 8> first = eight_at(at), second = PAIRED ? eight_at(at + p.apart) : first;
      const Pack<Result, 8> of_it = finish(place.part, first, second, columns, beside[i]);
      if (r < boxed) store_shared(at, *(const Bytes16*)of_it.at);
      else store<16>(result_of(FINISH_ARGS, place.part) + place.at(row + down + r), of_it);
    }
    if (!BOXED) continue;
    if (!STORES) {
      products_see_writes();
      threads_meet<THREADS>(meeting);
    }
    if (thread < boxed / BOX_ROWS && n - chunk * 8 < p.columns) {
      store_box(*result, place.column - chunk * 8, row + down + thread * BOX_ROWS, staged + thread * (BOX_ROWS * 128));
      stores_end();
    }
  }
}

DEVICE void multiply_tiles(const Problem& p, RESULT_MAPS FINISH_PARAMS) {
  const Tiles tiles(p, p.height, p.stacked);
  const u32 half = threadIdx.x / 128, to = p.staged + half * p.apart, of_all = PAIRED ? 0 : half, meeting = 1 + of_all;
  PW_WAIT();
  Slot slot = {0, 0};
  u32 phase = 0;
#pragma unroll 1
  for (u32 tile = tiles.first(); tile < tiles.count(); tile += tiles.step(), phase ^= 1) {
    float sum[MOST_ROWS / 2];
#define MULTIPLY(ROWS) if (p.height == ROWS) multiply_tile<ROWS>(sum, p, slot, half);
    EACH_HEIGHT(MULTIPLY)
    u32 row, column;
    tiles.at(tile, p, row, column);
    if (p.beside) barrier_wait(finished(p, half), phase ^ 1);
    if (p.beside && tile + tiles.step() < tiles.count()) {
      const u32 rows = min(rows_from(p, row), p.height);
      stage_rows(to, sum, rows);
      if (rows > PART) stage_rows(to + PART_BYTES, sum + PART / 2, rows - PART);
      if (STORES && BOXED) products_see_writes();
      barrier_arrive(made(p, half));
      continue;
    }
    auto stage = [&](u32 down, u32 rows) {
      // All have taken what was here before.
      if (BOXED) stores_have_read();
      threads_meet<MAKING>(meeting);
      if (down == 0) stage_rows(to, sum, rows);
      else stage_rows(to, sum + PART / 2, rows);
      if (STORES && BOXED) products_see_writes();
      threads_meet<MAKING>(meeting);
      return p.staged + of_all * p.apart;
    };
    finish_half<MAKING, PART>(p, of_all, row, column, threadIdx.x % MAKING, meeting, stage, RESULT_ARGS FINISH_ARGS);
  }
  if (BOXED) stores_done();
}

// What has been made, while the next is made.
DEVICE void finish_tiles(const Problem& p, u32 thread, RESULT_MAPS FINISH_PARAMS) {
  const Tiles tiles(p, p.height, p.stacked);
  PW_WAIT();
  u32 phase = 0;
#pragma unroll 1
  for (u32 tile = tiles.first(); tile + tiles.step() < tiles.count(); tile += tiles.step(), phase ^= 1) {
    u32 row, column;
    tiles.at(tile, p, row, column);
#pragma unroll 1
    for (u32 half = 0; half < 2 - PAIRED; ++half) {
      auto stage = [&](u32 down, u32) {
        if (down == 0) {
          barrier_wait(made(p, half), phase);
          if (PAIRED) barrier_wait(made(p, 1), phase);
        }
        return p.staged + half * p.apart + down * 128;
      };
      finish_half<FINISHING, FINISHING>(p, half, row, column, thread, 3, stage, RESULT_ARGS FINISH_ARGS);
      if (BOXED) stores_have_read();
      barrier_arrive(finished(p, half));
      if (PAIRED) barrier_arrive(finished(p, 1));
    }
  }
  if (BOXED) stores_done();
}

// What tiles of so many rows cost: rounds, each as long as its products, which wait for copies
// where they are small, and what is done with their sums.
DEVICE u64 cost(const Problem& p, u32 rows, bool stacked) {
  const Tiles tiles(p, rows, stacked);
  const u32 steps = blocks_for(p.depth, DEPTH), copies = stacked ? rows * 14 + 900 : rows * 9 + 1760;
  return (u64)blocks_for(tiles.count(), tiles.step()) * (steps * max(rows * 20, copies) + rows * 80 + 6000);
}
// What costs least; a lane looks at one height, with neighbours beside each other and stacked.
DEVICE void choose_tiles(Problem& p) {
  const u32 lane = threadIdx.x % 32;
  u32 mine = MOST_ROWS, at = 0;
#define HEIGHT(ROWS) if (lane % 16 == at++) mine = ROWS;
  EACH_HEIGHT(HEIGHT)
  const bool stacked = STACKS && CLUSTER > 1 && lane >= 16;
  u64 best = cost(p, mine, stacked) * (4 * MOST_ROWS) + mine * 2 + stacked;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const u64 other = from_lane(best, mask);
    if (other < best) best = other;
  }
  p.height = (u32)(best % (4 * MOST_ROWS)) / 2;
  p.stacked = STACKS && best % 2;
  // The last round has nothing beside it, and the ring is shorter.
  const Tiles tiles(p, p.height, p.stacked);
  p.beside = blocks_for(p.depth, DEPTH) >= LONG_STEPS && tiles.count() > 2 * tiles.step();
}

extern "C" __global__ void __launch_bounds__(384, 1) matmul(
    MAPS, FINISH_PARAMS,
    const i32* counts, u32 rows, u32 columns, u32 depth,
    u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  __shared__ u64 barriers[2 * MOST_SLOTS + 4];
  // No kernel of a step writes its counts.
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = min(real, rows);
  const u32 ring = (shared_address(staged) + 1023) / 1024 * 1024;
  Problem p = {real, columns / (PAIRED + 1), depth, ring, shared_address(barriers), cluster_rank()};
  choose_tiles(p);
  p.slot_bytes = 2 * HALF_BYTES + p.height * STEP_BYTES;
  p.apart = p.beside ? 2 * PART_BYTES : PART_BYTES;
  const u32 ring_bytes = SHARED_BYTES - 2 * p.apart;
  p.staged = ring + ring_bytes;
  p.slots = min(ring_bytes / p.slot_bytes, (u32)MOST_SLOTS);
  if (threadIdx.x == 0) {
    for (int i = 0; i < MOST_SLOTS; ++i) {
      barrier_init(full(p, i), 1);
      barrier_init(empty(p, i), WARPS * CLUSTER);
    }
    for (int half = 0; half < 2; ++half) {
      barrier_init(made(p, half), 128);
      barrier_init(finished(p, half), FINISHING);
    }
    barriers_made();
  }
  cluster_meet();
  if (threadIdx.x >= WARPS * 32) {
    registers_down<104>();
    if (threadIdx.x >= WARPS * 32 + 32) {
      if (p.beside) finish_tiles(p, threadIdx.x - (WARPS * 32 + 32), RESULT_ARGS FINISH_ARGS);
    } else if (threadIdx.x == WARPS * 32) {
      const TensorMap* x = 0;
#define CHOOSE(ROWS) if (p.height == ROWS) x = &x##ROWS;
      EACH_HEIGHT(CHOOSE)
      copy_tiles(p, *x, w);
    }
  } else {
    registers_up<200>();
    multiply_tiles(p, RESULT_ARGS FINISH_ARGS);
  }
  // No block leaves while another of its cluster may write to it.
  __syncwarp();
  cluster_meet();
}

// Attention of tiles of query rows over the keys that they see, on Hopper's warpgroup products, for
// sequences of more than FEW tokens; where their keys lie is said before it. A query row is a token and one of the GROUP heads that share
// a key-value head. Blocks stay and take tiles in turn: one warpgroup copies queries, and KEYS keys
// and values at a time, to rings of STAGES in shared memory; each of the COMPUTING others has 64
// rows of the tile. Rows lie in columns of 64 elements, 128 bytes each, 16-byte chunks swapped by
// their row; those of queries and keys are filled up to a step of 16 elements with zeros.
enum {
  TILE = COMPUTING * 64,
  THREADS = 128 + COMPUTING * 128,
  KEY_STEPS = (DIM + 15) / 16,
  QUERY_BYTES = 64 * ((DIM + 63) / 64) * 128,
  KEY_BYTES = KEYS * ((DIM + 63) / 64) * 128,
  VALUE_BYTES = KEYS * ((VALUE_DIM + 63) / 64) * 128,
  BLOCK_PAGES = KEYS / PAGE,
  // Floats of a row's result, its largest score and its sum.
  RESULT = VALUE_DIM + 8,
  // Numbers of meetings: of all that compute, and of the turns of each group.
  COMPUTED = 1,
  FIRST_TURN
};

// Where a chunk of a row lies, of columns of ROWS rows.
template <int ROWS> DEVICE u32 swizzled(u32 row, u32 chunk) {
  return (chunk / 8 * ROWS + row) * 128 + (chunk ^ row) % 8 * 16;
}

// Which chunk of rows of WIDTH elements a thread copies, of every AT_ONCE-th row. Chunks past the
// width become zeros, or are left where a row is FILLED with no more.
template <int WIDTH, int FILLED> struct Part {
  enum { ACROSS = FILLED <= 8 ? 8 : 16, AT_ONCE = 128 / ACROSS };
  u32 row = threadIdx.x / ACROSS, chunk = threadIdx.x % ACROSS;
  bool of_row = FILLED == ACROSS || chunk < FILLED, there = WIDTH / 8 == ACROSS || chunk < WIDTH / 8;
};

// This thread's part of the copy of a block of keys or values; a lane has the place of PAGE keys, one
// in BLOCK_PAGES of them, and how many of those are there. The others become zeros.
template <int WIDTH, int FILLED> DEVICE void stage_block(u32 to, const K* pool, u32 place_of, u32 there_of) {
  typedef Part<WIDTH, FILLED> Mine;
  enum { AT_ONCE = Mine::AT_ONCE, ROW = KV_HEADS * WIDTH };
  const Mine mine;
  const u32 row = mine.row, chunk = mine.chunk;
  const K* from = pool + (row * ROW + chunk * 8);
  const u32 into = to + swizzled<KEYS>(row, chunk);
#pragma unroll
  for (int p = 0; p < BLOCK_PAGES; ++p) {
    const u32 place = __shfl_sync(0xffffffffu, place_of, p), there = __shfl_sync(0xffffffffu, there_of, p);
#pragma unroll
    for (int i = 0; i < PAGE; i += AT_ONCE)
      if (mine.of_row) copy_shared_if(mine.there && row + i < there, into + (p * PAGE + i) * 128, from + ((u64)place * (PLACE * ROW) + i * ROW));
  }
}

// A ring's next place, and whether it is an odd round.
struct Slot {
  u32 at, round;
  DEVICE void next() {
    if (++at == STAGES) {
      at = 0;
      round ^= 1;
    }
  }
};

// Where a step's rows and sequences are.
struct Step {
  const i32 *places, *lengths, *starts, *query_lengths, *count;
  u32 rows, sequences, pages;
  u64 key_rows;
};

// The tiles of a block, those that see the most keys first: forth and back over the blocks in turn
// or, where the keys of a tile are cut into ranges, the same ones in all blocks of a cluster.
struct Turn {
  u32 head, row, first, blocks;
  Tile tile;
  Keys keys;
  // By any of its rows.
  Range seen;
  DEVICE bool take(const Step& step, u32 round) {
    u32 number;
    if (SPLITS == 1) {
      const u32 unit = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
      number = unit / KV_HEADS;
      head = unit % KV_HEADS;
    } else {
      number = round * gridDim.x + blockIdx.x;
      head = blockIdx.y;
    }
    if (!find_tile<TILE>(tile, number, step.lengths, step.starts, step.query_lengths, step.count, step.sequences, step.pages, FEW + 1, 0xffffffffu)) return false;
    row = (tile.of - 1 - tile.at) * TILE;
    keys = keys_in(tile, step.places, step.key_rows, step.pages);
    seen = {seen_in(0).from, seen_in(TILE - 1).to};
#if SLIDING
    // Ranges are of what the sequence sees, so that they depend on it alone; a later tile sees less of them.
    const u32 all = blocks_for(seen.to, KEYS), own_first = seen.from / KEYS, begin = keys_seen_by(0, tile.queries, keys.length).from / KEYS;
    const u32 range = blocks_for(blocks_for(keys.length, KEYS) - begin, SPLITS), cut = begin + (SPLITS == 1 ? 0 : blockIdx.z * range);
    const u32 upto = all < cut + range ? all : cut + range;
    first = cut < own_first ? own_first : cut;
    blocks = upto <= first ? 0 : upto - first;
#else
    const u32 all = blocks_for(seen.to, KEYS), range = SPLITS == 1 ? all : blocks_for(blocks_for(keys.length, KEYS), SPLITS);
    first = SPLITS == 1 ? seen.from / KEYS : blockIdx.z * range;
    blocks = all <= first ? 0 : all - first < range ? all - first : range;
#endif
    return true;
  }
  // By a row of the tile; both ends ascend with it.
  DEVICE Range seen_in(u32 line) const { return keys_seen_by((row + line) / GROUP, tile.queries, keys.length); }
  // Whether a row has a token, and where that and the row's head are among all.
  DEVICE bool place(u64& at, u32 line, const Step& step) const {
    const u32 token = (row + line) / GROUP;
    const bool there = token < tile.queries && tile.start >= 0 && (u32)tile.start + token < step.rows;
    at = (u64)(there ? tile.start + token : 0) * HEADS + head * GROUP + (row + line) % GROUP;
    return there;
  }
};

// Where the parts of shared memory start; a barrier for each place of a ring.
struct Shared {
  u32 queries, keys, values, queries_there, queries_done, keys_there, keys_done, values_there, values_done;
};

DEVICE void copy_all(const Shared& shared, const Step& step, const Q* q, const K* k, const K* v) {
  const u32 lane = threadIdx.x % 32;
  Turn turn;
  Slot slot = {0, 1};
  for (u32 round = 0; turn.take(step, round); ++round) {
    u32 place_of, there_of;
    auto find_keys = [&](u32 block) {
      const u32 position = (turn.first + block) * KEYS + lane % BLOCK_PAGES * PAGE;
#if SLIDING
      const bool is_seen = position < turn.seen.to && position + PAGE > turn.seen.from;
      place_of = place_of_keys(there_of, turn.keys, position, is_seen ? turn.seen.to - position : 0);
#else
      place_of = place_of_keys(there_of, turn.keys, position, position < turn.seen.to ? turn.seen.to - position : 0);
#endif
    };
    find_keys(0);
    barrier_wait(shared.queries_done, round % 2 ^ 1);
    typedef Part<DIM, KEY_STEPS * 2> Mine;
    const Mine mine;
#pragma unroll 4
    for (u32 line = mine.row; line < TILE; line += Mine::AT_ONCE) {
      u64 at;
      const bool there = turn.place(at, line, step) && mine.there;
      const u32 to = shared.queries + line / 64 * QUERY_BYTES + swizzled<64>(line % 64, mine.chunk);
      if (mine.of_row) copy_shared_if(there, to, q + at * DIM + mine.chunk * 8);
    }
    barrier_arrive_copied(shared.queries_there);
    for (u32 block = 0; block < turn.blocks; ++block) {
      barrier_wait(shared.keys_done + 8 * slot.at, slot.round);
      stage_block<DIM, KEY_STEPS * 2>(shared.keys + slot.at * KEY_BYTES, k + turn.head * DIM, place_of, there_of);
      barrier_arrive_copied(shared.keys_there + 8 * slot.at);
      barrier_wait(shared.values_done + 8 * slot.at, slot.round);
      stage_block<VALUE_DIM, VALUE_DIM / 8>(shared.values + slot.at * VALUE_BYTES, v + turn.head * VALUE_DIM, place_of, there_of);
      barrier_arrive_copied(shared.values_there + 8 * slot.at);
      find_keys(block + 1);
      slot.next();
    }
    if (SPLITS != 1) {
      cluster_meet();
      cluster_meet();
    }
  }
  copies_done();
}

// What a thread has of 64 rows: of two of them, every fourth pair of columns.
struct Sums {
  float o[VALUE_DIM / 2], top[2], sum[2];
  u32 share[KEYS / 4];
};

// Scores become shares of what their rows have seen so far; what was seen before shrinks.
DEVICE void weigh(Sums& sums, float (&score)[KEYS / 2], float (&shrink)[2], float scale) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = -INF_F;
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) largest = fmaxf(largest, fmaxf(score[4 * n + 2 * h], score[4 * n + 2 * h + 1]));
    largest = fmaxf(largest, from_lane(largest, 1));
    largest = fmaxf(largest, from_lane(largest, 2));
    const float higher = fmaxf(sums.top[h], largest * scale);
    // A row that has seen nothing yet has no largest score to take from the others.
    const float from = higher == -INF_F ? 0.0f : higher;
    shrink[h] = power_of_two(sums.top[h] - from);
    sums.top[h] = higher;
    sums.sum[h] *= shrink[h];
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
      const float x = power_of_two(fmaf(score[4 * n + 2 * h], scale, -from));
      const float y = power_of_two(fmaf(score[4 * n + 2 * h + 1], scale, -from));
      sums.sum[h] += x + y;
      score[4 * n + 2 * h] = x;
      score[4 * n + 2 * h + 1] = y;
    }
  }
}

#if SINKS
DEVICE void compute_all(const Shared& shared, const Step& step, Q* out, float scale, const SINK* sinks) {
#else
DEVICE void compute_all(const Shared& shared, const Step& step, Q* out, float scale) {
#endif
  const u32 lane = threadIdx.x % 32, thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1;
  const u32 in_quad = lane % 4, line0 = group * 64 + thread / 32 * 16 + lane / 4;
  const u64 a = matrix_at(shared.queries + group * QUERY_BYTES);
  Turn turn;
  Slot slot = {0, 0};
  for (u32 round = 0; turn.take(step, round); ++round) {
    // By every row of the group, and by those of this thread.
    const Range by_all = {turn.seen_in(group * 64 + 63).from, turn.seen_in(group * 64).to};
    Range seen[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) seen[h] = turn.seen_in(line0 + h * 8);
    Sums sums;
#pragma unroll
    for (int i = 0; i < VALUE_DIM / 2; ++i) sums.o[i] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sums.top[h] = -INF_F;
      sums.sum[h] = 0.0f;
    }
#if SINKS
    // The sink is a score of no key, which the first range has seen.
    if (SPLITS == 1 || blockIdx.z == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums.top[h] = sink_score(sinks[turn.head * GROUP + (turn.row + line0 + h * 8) % GROUP]);
        if (in_quad == 0) sums.sum[h] = 1.0f;
      }
    }
#endif
    // Scores of the block at this place, on the way.
    auto score_block = [&](float (&score)[KEYS / 2]) {
      const u64 b = matrix_at(shared.keys + slot.at * KEY_BYTES);
      products_begin();
#pragma unroll
      for (int d = 0; d < KEY_STEPS; ++d)
        multiply_add_tile(score, a + d / 4 * (64 * 8) + d % 4 * 2, b + d / 4 * (KEYS * 8) + d % 4 * 2, d != 0);
      products_end();
    };
    auto add_values = [&](const Slot& of) {
      const u64 b = columns_at(shared.values + of.at * VALUE_BYTES, KEYS * 128);
      products_begin();
#pragma unroll
      for (int j = 0; j < KEYS / 16; ++j)
        multiply_add_tile(sums.o, sums.share[4 * j], sums.share[4 * j + 1], sums.share[4 * j + 2], sums.share[4 * j + 3], b + j * 128, 1);
      products_end();
    };
    auto mask = [&](float (&score)[KEYS / 2], u32 block) {
#if CAPPED
#pragma unroll
      for (int i = 0; i < KEYS / 2; ++i) score[i] = share_of_cap(score[i] * scale);
#endif
      const u32 base = (turn.first + block) * KEYS;
      if (by_all.from <= base && base + KEYS <= by_all.to) return;
#pragma unroll
      for (int i = 0; i < KEYS / 2; ++i) {
        const u32 position = base + i / 4 * 8 + in_quad * 2 + i % 2;
        if (position < seen[i / 2 % 2].from || position >= seen[i / 2 % 2].to) score[i] = -INF_F;
      }
    };
    auto pack = [&](const float (&score)[KEYS / 2]) {
#pragma unroll
      for (int i = 0; i < KEYS / 4; ++i) sums.share[i] = pair_of<Q>(score[2 * i], score[2 * i + 1]);
    };
    float shrink[2];
    barrier_wait(shared.queries_there, round % 2);
    if (turn.blocks != 0) {
      // The groups take turns: while one's products run, another weighs its scores.
      if (COMPUTING > 1 && group == COMPUTING - 1) threads_arrive<256>(FIRST_TURN);
      {
        float score[KEYS / 2];
        barrier_wait(shared.keys_there + 8 * slot.at, slot.round);
        products_see_writes();
        score_block(score);
        products_done_but<0>(score);
        if (lane == 0) barrier_arrive(shared.keys_done + 8 * slot.at);
        mask(score, 0);
#if CAPPED
        weigh(sums, score, shrink, CAP);
#else
        weigh(sums, score, shrink, scale);
#endif
        pack(score);
      }
      for (u32 block = 1; block < turn.blocks; ++block) {
        const Slot before = slot;
        slot.next();
        float score[KEYS / 2];
        barrier_wait(shared.keys_there + 8 * slot.at, slot.round);
        barrier_wait(shared.values_there + 8 * before.at, before.round);
        products_see_writes();
        if (COMPUTING > 1) threads_meet<256>(FIRST_TURN + group);
        score_block(score);
        add_values(before);
        if (COMPUTING > 1 && (group != COMPUTING - 1 || block + 1 < turn.blocks)) threads_arrive<256>(FIRST_TURN + (group + 1) % COMPUTING);
        products_done_but<1>(score);
        if (lane == 0) barrier_arrive(shared.keys_done + 8 * slot.at);
        mask(score, block);
#if CAPPED
        weigh(sums, score, shrink, CAP);
#else
        weigh(sums, score, shrink, scale);
#endif
        products_done_but<0>(sums.o);
        if (lane == 0) barrier_arrive(shared.values_done + 8 * before.at);
        pack(score);
#pragma unroll
        for (int i = 0; i < VALUE_DIM / 2; ++i) sums.o[i] *= shrink[i / 2 % 2];
      }
      if (COMPUTING > 1 && turn.blocks == 1 && group == 0) threads_meet<256>(FIRST_TURN);
      if (lane == 0) barrier_arrive(shared.queries_done);
      barrier_wait(shared.values_there + 8 * slot.at, slot.round);
      products_see_writes();
      add_values(slot);
      products_done_but<0>(sums.o);
      if (lane == 0) barrier_arrive(shared.values_done + 8 * slot.at);
      slot.next();
    } else if (lane == 0) {
      barrier_arrive(shared.queries_done);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) sums.sum[h] = lanes<Sum, 4>(sums.sum[h]);
    if (SPLITS == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        u64 at;
        if (!turn.place(at, line0 + h * 8, step)) continue;
        u32* to = (u32*)(out + at * VALUE_DIM) + in_quad;
        // What sees no key is zeros.
        const float one = 1.0f / (seen[h].from < seen[h].to ? sums.sum[h] : 1.0f);
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; ++n) to[n * 4] = pair_of<Q>(sums.o[4 * n + 2 * h] * one, sums.o[4 * n + 2 * h + 1] * one);
      }
    } else {
      // The ranges' results become one, each block of the cluster making some rows; they lie where
      // queries, keys and values were.
      threads_meet<COMPUTING * 128>(COMPUTED);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u32 at = shared.queries + (line0 + h * 8) * (RESULT * 4);
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; ++n) store_shared(at + (n * 8 + in_quad * 2) * 4, sums.o[4 * n + 2 * h], sums.o[4 * n + 2 * h + 1]);
        if (in_quad == 0) store_shared(at + VALUE_DIM * 4, sums.top[h], sums.sum[h]);
      }
      cluster_meet();
      enum { OWN = TILE / SPLITS, QUARTERS = VALUE_DIM / 4 };
      for (u32 unit = threadIdx.x - 128; unit < OWN * QUARTERS; unit += COMPUTING * 128) {
        const u32 line = blockIdx.z * OWN + unit / QUARTERS, column = unit % QUARTERS * 4;
        const u32 from = shared.queries + line * (RESULT * 4);
        u64 at;
        if (!turn.place(at, line, step)) continue;
        float of[SPLITS][2], part[SPLITS][4], higher = -INF_F, sum = 0.0f, x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) {
          load_cluster(of[s], from + VALUE_DIM * 4, s);
          load_cluster(part[s], from + column * 4, s);
        }
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) higher = fmaxf(higher, of[s][0]);
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) {
          const float weight = of[s][0] == -INF_F ? 0.0f : power_of_two(of[s][0] - higher);
          sum = fmaf(of[s][1], weight, sum);
#pragma unroll
          for (int c = 0; c < 4; ++c) x[c] = fmaf(part[s][c], weight, x[c]);
        }
        u32* to = (u32*)(out + at * VALUE_DIM + column);
        const float one = 1.0f / sum;
        to[0] = pair_of<Q>(x[0] * one, x[1] * one);
        to[1] = pair_of<Q>(x[2] * one, x[3] * one);
      }
      // No block goes on while another reads what it holds.
      __syncwarp();
      cluster_meet();
    }
  }
}

// Grid: (blocks, 1, 1), or (tiles, key-value heads, ranges of keys), the ranges of a tile being a
// cluster.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ENTRY(
    const Q* q, const K* k, const K* v, const i32* places, const i32* lengths, const i32* starts,
    const i32* query_lengths, Q* out, const i32* counts,
#if SINKS
    u32 rows, u32 sequences, u32 sequence_symbol, u64 key_rows, u32 pages, float scale, const SINK* sinks) {
#else
    u32 rows, u32 sequences, u32 sequence_symbol, u64 key_rows, u32 pages, float scale) {
#endif
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  __shared__ u64 barriers[4 * STAGES + 2];
  Shared shared;
  shared.queries = (shared_address(staged) + 1023) / 1024 * 1024;
  shared.keys = shared.queries + COMPUTING * QUERY_BYTES;
  shared.values = shared.keys + STAGES * KEY_BYTES;
  shared.queries_there = shared_address(barriers);
  shared.queries_done = shared.queries_there + 8;
  shared.keys_there = shared.queries_done + 8;
  shared.keys_done = shared.keys_there + 8 * STAGES;
  shared.values_there = shared.keys_done + 8 * STAGES;
  shared.values_done = shared.values_there + 8 * STAGES;
  if (threadIdx.x == 0) {
    barrier_init(shared.queries_there, 128);
    barrier_init(shared.queries_done, COMPUTING * 4);
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(shared.keys_there + 8 * s, 128);
      barrier_init(shared.keys_done + 8 * s, COMPUTING * 4);
      barrier_init(shared.values_there + 8 * s, 128);
      barrier_init(shared.values_done + 8 * s, COMPUTING * 4);
    }
    barriers_made();
  }
  __syncthreads();
  PW_WAIT();
  const Step step = {places, lengths, starts, query_lengths, counts + sequence_symbol, rows, sequences, pages, key_rows};
  if (threadIdx.x < 128) {
    registers_down<COPY_REGISTERS>();
    copy_all(shared, step, q, k, v);
  } else {
    registers_up<COMPUTE_REGISTERS>();
#if SINKS
    compute_all(shared, step, out, scale, sinks);
#else
    compute_all(shared, step, out, scale);
#endif
  }
}

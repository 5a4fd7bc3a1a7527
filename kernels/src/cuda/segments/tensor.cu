// Attention within segments on tensor cores. A query row is a token and one of the GROUP heads that
// share a key-value head; a warp has 16 rows. Two stages of KEYS keys and values lie in shared
// memory, rows an odd number of 16-byte chunks apart, so that eight neighbouring ones lie in
// different banks. Widths that are no multiple of 16 are filled up with zeros.
enum {
  TILE = WARPS * 16,
  THREADS = WARPS * 32,
  KEY_STEPS = (DIM + 15) / 16,
  VALUE_STEPS = (VALUE_DIM + 15) / 16,
  KEY_STRIDE = KEY_STEPS * 2 + 1,
  VALUE_STRIDE = VALUE_STEPS * 2 + 1,
  STAGE = KEYS * (KEY_STRIDE + VALUE_STRIDE)
};

// KEYS rows of WIDTH elements from row `first` on; zeros past `there` rows and past the width.
template <int WIDTH, int STRIDE> DEVICE void stage_rows(Bytes16* to, const K* from, u64 first, u32 there) {
  enum { CHUNKS = STRIDE - 1, REAL = WIDTH / 8 };
#pragma unroll
  for (int i = 0; i < (KEYS * CHUNKS + THREADS - 1) / THREADS; ++i) {
    const u32 chunk = threadIdx.x + i * THREADS, row = chunk / CHUNKS, column = chunk % CHUNKS;
    if (KEYS * CHUNKS % THREADS != 0 && row >= KEYS) break;
    const bool real = row < there && (REAL == CHUNKS || column < REAL);
    // No byte is read of what is not there.
    const K* at = from + ((first + row) * KV_HEADS + blockIdx.y) * WIDTH + column * 8;
    copy_async_if(real, to + row * STRIDE + column, real ? at : from);
  }
}

// Grid: (tiles, key-value heads).
extern "C" __global__ void __launch_bounds__(THREADS) segment_attention(
    const Q* q, const K* k, const K* v, const i32* starts, const i32* query_lengths, const i32* key_starts,
    const i32* key_lengths, Q* out, const i32* counts, u32 rows, u32 key_rows, u32 segments, u32 segment_symbol,
    float scale) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  PW_WAIT();
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, in_quad = lane % 4;
  Tile found;
  if (!find_tile<TILE>(found, blockIdx.x, key_lengths, starts, query_lengths, counts + segment_symbol, segments, MOST_PAGES, 1, 0xffffffffu)) return;
  const u32 queries = found.queries, head0 = blockIdx.y * GROUP;
  const i32 start = found.start;
  const Keys keys_of = keys_in(found, key_starts, key_rows);
  const u32 first_row = found.at * TILE, last = (first_row + TILE - 1) / GROUP;
  // Both bounds ascend with the token.
  const Range whole = {keys_seen_by(first_row / GROUP, queries, keys_of.length).from, keys_seen_by(last, queries, keys_of.length).to};
  const u32 first_block = whole.from / KEYS, blocks = whole.from < whole.to ? blocks_for(whole.to, KEYS) : first_block;

  auto stage_next = [&](u32 block) {
    Bytes16* keys = staged + block % 2 * STAGE;
    const u64 first = (u64)keys_of.start + block * KEYS;
    const u32 there = whole.to - block * KEYS;
    stage_rows<DIM, KEY_STRIDE>(keys, k, first, there);
    stage_rows<VALUE_DIM, VALUE_STRIDE>(keys + KEYS * KEY_STRIDE, v, first, there);
  };
  if (first_block < blocks) stage_next(first_block);

  u32 query[QUERY_STAGED ? 1 : KEY_STEPS][4];
  Range seen[2];
  bool valid[2];
  u64 result[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const u32 row = first_row + warp * 16 + quad + h * 8, token = row / GROUP;
    valid[h] = token < queries && start >= 0 && (u32)start + token < rows;
    seen[h] = keys_seen_by(token, queries, keys_of.length);
    result[h] = (u64)(valid[h] ? start + token : 0) * HEADS + head0 + row % GROUP;
    if (!QUERY_STAGED) {
      const u32* from = (const u32*)(q + result[h] * DIM);
#pragma unroll
      for (int d = 0; d < KEY_STEPS; ++d) {
        query[QUERY_STAGED ? 0 : d][h] = valid[h] ? from[d * 8 + in_quad] : 0;
        query[QUERY_STAGED ? 0 : d][2 + h] = valid[h] && d * 16 + 8 < DIM ? from[d * 8 + 4 + in_quad] : 0;
      }
    }
  }
  Bytes16* queries_at = staged + 2 * STAGE;
  if (QUERY_STAGED) {
    for (u32 chunk = threadIdx.x; chunk < TILE * KEY_STEPS * 2; chunk += THREADS) {
      const u32 line = chunk / (KEY_STEPS * 2), column = chunk % (KEY_STEPS * 2);
      const u32 row = first_row + line, token = row / GROUP;
      const bool there = token < queries && start >= 0 && (u32)start + token < rows && column < DIM / 8;
      const u64 at = (u64)(there ? start + token : 0) * HEADS + head0 + row % GROUP;
      copy_async_if(there, queries_at + line * KEY_STRIDE + column, q + at * DIM + (there ? column * 8 : 0));
    }
  }

  float top[2] = {-INF_F, -INF_F}, sum[2] = {0.0f, 0.0f}, o[VALUE_STEPS * 2][4];
#pragma unroll
  for (int n = 0; n < VALUE_STEPS * 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;

  for (u32 block = first_block; block < blocks; ++block) {
    // What this thread copied has come, then what all did; all are done with the other stage.
    copies_done();
    __syncthreads();
    if (block + 1 < blocks) stage_next(block + 1);
    const u32 base = block * KEYS;
    const Bytes16* keys = staged + block % 2 * STAGE;
    const Bytes16* values = keys + KEYS * KEY_STRIDE;
    float score[KEYS / 8][4];
    score_keys<KEYS, KEY_STEPS, KEY_STRIDE, QUERY_STAGED>(score, keys, queries_at + warp * 16 * KEY_STRIDE, query, lane);
    // Whether every row of the warp sees every key of the block.
    const bool sees_all = seen[0].from <= base && seen[1].from <= base && base + KEYS <= seen[0].to && base + KEYS <= seen[1].to;
    const bool all_seen = __ballot_sync(0xffffffffu, sees_all) == 0xffffffffu;
    if (!all_seen) {
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const u32 position = base + n * 8 + in_quad * 2 + i % 2;
          if (position < seen[i / 2].from || position >= seen[i / 2].to) score[n][i] = -INF_F;
        }
    }
    float from[2];
    raise_top(score, scale, top, sum, o, from);
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) add_values<VALUE_STRIDE>(score + 2 * j, scale, from, values + j * 16 * VALUE_STRIDE, sum, o, lane);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float added = lanes<Sum, 4>(sum[h]), all = seen[h].from < seen[h].to ? added : 1.0f;
    if (!valid[h]) continue;
    u32* to = (u32*)(out + result[h] * VALUE_DIM);
#pragma unroll
    for (int n = 0; n < VALUE_DIM / 8; ++n) to[n * 4 + in_quad] = pair_of<Q>(o[n][2 * h] / all, o[n][2 * h + 1] / all);
  }
}

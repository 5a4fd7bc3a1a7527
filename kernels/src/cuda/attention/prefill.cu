// Attention of tiles of query rows over all keys that they see, on tensor cores, for sequences of
// more than FEW tokens. A query row is a token and one of the GROUP heads that share a key-value
// head; a warp has 16 rows. Two stages of KEYS keys and values lie in shared memory, rows an odd
// number of 16-byte chunks apart, so that eight neighbouring ones lie in different banks.
enum {
  TILE = WARPS * 16,
  THREADS = WARPS * 32,
  KEY_CHUNKS = DIM / 8,
  VALUE_CHUNKS = VALUE_DIM / 8,
  KEY_STRIDE = KEY_CHUNKS + 1,
  VALUE_STRIDE = VALUE_CHUNKS + 1,
  STAGE = KEYS * (KEY_STRIDE + VALUE_STRIDE)
};

// A page of rows of CHUNKS chunks; zeros from row `there` on.
template <int CHUNKS> DEVICE void stage_page(Bytes16* to, const K* pool, u32 page, u32 there) {
  const K* from = pool + ((u64)page * (PAGE * KV_HEADS) + blockIdx.y) * (CHUNKS * 8);
#pragma unroll
  for (int i = 0; i < (PAGE * CHUNKS + THREADS - 1) / THREADS; ++i) {
    const u32 chunk = threadIdx.x + i * THREADS, row = chunk / CHUNKS, column = chunk % CHUNKS;
    if (PAGE * CHUNKS % THREADS != 0 && row >= PAGE) break;
    // No byte is read of what is not there.
    copy_async_if(row < there, to + row * (CHUNKS + 1) + column, from + row * (KV_HEADS * CHUNKS * 8) + column * 8);
  }
}

// Grid: (tiles, key-value heads).
extern "C" __global__ void __launch_bounds__(THREADS) attention_prefill(
    const Q* q, const K* k, const K* v, const i32* table, const i32* lengths, const i32* starts,
    const i32* query_lengths, Q* out, const i32* counts,
#if SINKS
    u32 rows, u32 sequences, u32 sequence_symbol, u64 kv_rows, u32 pages, float scale, const SINK* sinks) {
#else
    u32 rows, u32 sequences, u32 sequence_symbol, u64 kv_rows, u32 pages, float scale) {
#endif
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  PW_WAIT();
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, in_quad = lane % 4;
  Tile found;
  if (!find_tile<TILE>(found, blockIdx.x, lengths, starts, query_lengths, counts + sequence_symbol, sequences, pages, FEW + 1, 0xffffffffu)) return;
  // The tiles that see the most keys start first.
  const u32 sequence = found.sequence, tile = found.of - 1 - found.at;
  const u32 queries = found.queries, length = found.length, head0 = blockIdx.y * GROUP;
  const i32 start = found.start;
  const u32 first_row = tile * TILE, last_token = (first_row + TILE - 1) / GROUP;
  const u32 fewest = seen_by(first_row / GROUP, queries, length);
  const u32 most = seen_by(last_token < queries ? last_token : queries - 1, queries, length);
  const u32 warp_row = first_row + warp * 16;
  const u32 warp_most = warp_row < queries * GROUP ? seen_by((warp_row + 15) / GROUP, queries, length) : 0;
  const u32 blocks = blocks_for(most, KEYS);
#if SLIDING
  const u32 earliest = seen_from(first_row / GROUP, queries, length), begin = earliest / KEYS;
  const u32 latest = seen_from(last_token < queries ? last_token : queries - 1, queries, length);
  const u32 warp_earliest = seen_from(warp_row / GROUP, queries, length);
#endif

  i32 next_pages[KEYS / PAGE];
  auto find_pages = [&](u32 block) {
#pragma unroll
    for (int p = 0; p < KEYS / PAGE; ++p) {
      const u32 position = block * KEYS + p * PAGE;
#if SLIDING
      next_pages[p] = position < most && position + PAGE > earliest ? table[(u64)sequence * pages + position / PAGE] : -1;
#else
      next_pages[p] = position < most ? table[(u64)sequence * pages + position / PAGE] : -1;
#endif
    }
  };
  auto stage_next = [&](u32 block) {
    Bytes16* keys = staged + block % 2 * STAGE;
#pragma unroll
    for (int p = 0; p < KEYS / PAGE; ++p) {
      const u64 first = (u64)(u32)next_pages[p] * PAGE, left = most - block * KEYS - p * PAGE;
      const u64 held = next_pages[p] >= 0 && first < kv_rows ? kv_rows - first : 0;
      const u32 there = (u32)(left < held ? left : held), page = there != 0 ? next_pages[p] : 0;
      stage_page<KEY_CHUNKS>(keys + p * PAGE * KEY_STRIDE, k, page, there);
      stage_page<VALUE_CHUNKS>(keys + KEYS * KEY_STRIDE + p * PAGE * VALUE_STRIDE, v, page, there);
    }
  };
#if SLIDING
  find_pages(begin);
  stage_next(begin);
  find_pages(begin + 1);
#else
  find_pages(0);
  stage_next(0);
  find_pages(1);
#endif

  u32 seen[2], query[QUERY_STAGED ? 1 : DIM / 16][4];
  bool valid[2];
  u64 result[2];
#if SLIDING
  u32 least[2];
#endif
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const u32 row = warp_row + quad + h * 8, token = row / GROUP;
    valid[h] = token < queries && start >= 0 && (u32)start + token < rows;
    seen[h] = seen_by(token, queries, length);
#if SLIDING
    least[h] = seen_from(token, queries, length);
#endif
    result[h] = (u64)(valid[h] ? start + token : 0) * HEADS + head0 + row % GROUP;
    if (!QUERY_STAGED) {
      const u32* from = (const u32*)(q + result[h] * DIM);
#pragma unroll
      for (int d = 0; d < DIM / 16; ++d) {
        query[QUERY_STAGED ? 0 : d][h] = valid[h] ? from[d * 8 + in_quad] : 0;
        query[QUERY_STAGED ? 0 : d][2 + h] = valid[h] ? from[d * 8 + 4 + in_quad] : 0;
      }
    }
  }
  Bytes16* queries_at = staged + 2 * STAGE;
  if (QUERY_STAGED) {
    for (u32 chunk = threadIdx.x; chunk < TILE * KEY_CHUNKS; chunk += THREADS) {
      const u32 line = chunk / KEY_CHUNKS, column = chunk % KEY_CHUNKS;
      const u32 row = first_row + line, token = row / GROUP;
      const bool there = token < queries && start >= 0 && (u32)start + token < rows;
      const u64 at = (u64)(there ? start + token : 0) * HEADS + head0 + row % GROUP;
      copy_async_if(there, queries_at + line * KEY_STRIDE + column, q + at * DIM + column * 8);
    }
  }

  float top[2] = {-INF_F, -INF_F}, sum[2] = {0.0f, 0.0f}, o[VALUE_DIM / 8][4];
#pragma unroll
  for (int n = 0; n < VALUE_DIM / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;
#if SINKS
  // The sink is a score of no key.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = sink_score(sinks[head0 + (warp_row + quad + h * 8) % GROUP]);
    if (in_quad == 0) sum[h] = 1.0f;
  }
#endif

#if SLIDING
  for (u32 block = begin; block < blocks; ++block) {
#else
  for (u32 block = 0; block < blocks; ++block) {
#endif
    // What this thread copied has come, then what all did; all are done with the other stage.
    copies_done();
    __syncthreads();
    if (block + 1 < blocks) {
      stage_next(block + 1);
      find_pages(block + 2);
    }
    const u32 base = block * KEYS;
    if (base >= warp_most) continue;
#if SLIDING
    if (base + KEYS <= warp_earliest) continue;
#endif
    const Bytes16* keys = staged + block % 2 * STAGE;
    const Bytes16* values = keys + KEYS * KEY_STRIDE;
    float score[KEYS / 8][4];
    score_keys<KEYS, DIM / 16, KEY_STRIDE, QUERY_STAGED>(score, keys, queries_at + warp * 16 * KEY_STRIDE, query, lane);
#if CAPPED
    cap_scores(score, scale);
#endif
#if SLIDING
    if (base + KEYS > fewest || base < latest) {
#else
    if (base + KEYS > fewest) {
#endif
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const u32 position = base + n * 8 + in_quad * 2 + i % 2;
#if SLIDING
          if (position >= seen[i / 2] || position < least[i / 2]) score[n][i] = -INF_F;
#else
          if (position >= seen[i / 2]) score[n][i] = -INF_F;
#endif
        }
    }
    float from[2];
#if CAPPED
    raise_top(score, CAP, top, sum, o, from);
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) add_values<VALUE_STRIDE>(score + 2 * j, CAP, from, values + j * 16 * VALUE_STRIDE, sum, o, lane);
#else
    raise_top(score, scale, top, sum, o, from);
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) add_values<VALUE_STRIDE>(score + 2 * j, scale, from, values + j * 16 * VALUE_STRIDE, sum, o, lane);
#endif
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float all = lanes<Sum, 4>(sum[h]);
    if (!valid[h]) continue;
    u32* to = (u32*)(out + result[h] * VALUE_DIM);
#pragma unroll
    for (int n = 0; n < VALUE_DIM / 8; ++n) to[n * 4 + in_quad] = pair_of<Q>(o[n][2 * h] / all, o[n][2 * h + 1] / all);
  }
}

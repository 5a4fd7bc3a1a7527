// Attention of tiles of 16 query rows over a range of keys, on tensor cores. A query row is a token
// and one of the GROUP heads that share a key-value head. The keys of a sequence are cut into
// `splits` ranges by its length alone, and the pages of a range are dealt to the warps of a block.
// Each warp keeps STAGES pages of its own on the way, so that it waits for memory and for no other
// warp. Rows lie an odd number of 16-byte chunks apart, so that eight neighbouring ones lie in
// different banks. The blocks of a cluster have the ranges of one tile: each makes one result of
// its share of the elements, in the order of the ranges. Where STAYS, they are neighbours on the
// first axis, and take one tile after the other; then, each for itself, those of sequences of fewer than
// LONG keys.
enum {
  ROWS = 16,
  THREADS = WARPS * 32,
  KEY_CHUNKS = DIM / 8,
  VALUE_CHUNKS = VALUE_DIM / 8,
  KEY_STRIDE = KEY_CHUNKS + 1,
  VALUE_STRIDE = VALUE_CHUNKS + 1,
  STAGE = PAGE * (KEY_STRIDE + VALUE_STRIDE),
  RESULT_STRIDE = VALUE_DIM + 8,
  PAIRS = VALUE_DIM / 2,
  // Pairs of a tile that a block of a cluster makes.
  SHARE = (ROWS * PAIRS + CLUSTER - 1) / CLUSTER,
  // Where a block of a cluster gets the others' ranges: after its first warp's result, in stages
  // that nobody needs any more.
  RANGES_AT = (ROWS * RESULT_STRIDE + 3) / 4,
  // Pages that no kernel of the step writes are asked for before the wait.
  AHEAD = EARLY && !QUERY_STAGED
};
struct alignas(8) Pair { float x, y; };

// A warp's copy of a page of rows of CHUNKS chunks; zeros from row `there` on. Where a warp copies
// whole rows at a time, the copies differ by constants.
template <int CHUNKS> DEVICE void stage_page(Bytes16* to, const K* pool, u32 head, u32 page, u32 there) {
  enum { WHOLE = 32 % CHUNKS == 0, ROWS_EACH = WHOLE ? 32 / CHUNKS : 0, ROW = KV_HEADS * CHUNKS * 8 };
  const int lane = threadIdx.x % 32, row0 = lane / CHUNKS, column0 = lane % CHUNKS;
  const K* from = pool + ((u64)page * PAGE * KV_HEADS + head) * (CHUNKS * 8) + (row0 * ROW + column0 * 8);
  Bytes16* into = to + (row0 * (CHUNKS + 1) + column0);
#pragma unroll
  for (int i = 0; i < PAGE * CHUNKS / 32; ++i) {
    const int chunk = lane + i * 32, row = WHOLE ? row0 + i * ROWS_EACH : chunk / CHUNKS, column = chunk % CHUNKS;
    const int by = WHOLE ? i * ROWS_EACH : row - row0, aside = WHOLE ? 0 : column - column0;
    // No byte is read of what is not there.
    copy_async_if(row < (int)there, into + (by * (CHUNKS + 1) + aside), from + (by * ROW + aside * 8));
  }
}

// find_tile where every sequence brings UNIFORM tokens: nothing has to be added up.
DEVICE bool uniform_tile(Tile& found, u32 number, const i32* lengths, const i32* starts, const i32* query_lengths,
                         const i32* count, u32 sequences, u32 pages) {
  const u32 each = blocks_for((u32)UNIFORM * GROUP, ROWS), sequence = UNIFORM ? number / each : 0;
  if (sequence >= sequences) return false;
  const i32 n = query_lengths[sequence], keys = lengths[sequence], start = starts[sequence];
  if (sequence >= (u32)*count || n <= 0) return false;
  const u32 length = keys > 0 ? keys : 0;
  found = {sequence, number - sequence * each, each, (u32)n, length < pages * PAGE ? length : pages * PAGE, start};
  return true;
}

// Grid: (tiles, key-value heads, splits), or, where STAYS, as many clusters as there is room for.
extern "C" __global__ void __launch_bounds__(THREADS) attention_decode(
    const Q* q, const K* k, const K* v, const i32* table, const i32* lengths, const i32* starts,
    const i32* query_lengths, Q* out, float* partial, const i32* counts,
#if SINKS
    u32 rows, u32 sequences, u32 sequence_symbol, u64 kv_rows, u32 pages, u32 splits, float scale, const SINK* sinks) {
#else
    u32 rows, u32 sequences, u32 sequence_symbol, u64 kv_rows, u32 pages, u32 splits, float scale) {
#endif
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  __shared__ float warp_top[WARPS][ROWS], warp_sum[WARPS][ROWS];
  __shared__ Pair weights[CLUSTER > 1 ? CLUSTER : 1][ROWS];
  if (!EARLY) PW_WAIT();
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, in_quad = lane % 4;
  const i32* count = counts + sequence_symbol;
  bool is_shared = true;
  u32 block = STAYS ? blockIdx.x / CLUSTER : blockIdx.y * gridDim.x + blockIdx.x;
  for (;;) {
    const u32 split = !STAYS ? blockIdx.z : is_shared ? blockIdx.x % CLUSTER : 0, ranges_of_tile = is_shared ? splits : 1;
    Tile found;
    // Blocks of one tile run side by side, since the heads of a key are neighbours in memory.
    const u32 kv_head = block % KV_HEADS, tile = block / KV_HEADS;
    const bool has_tile = UNIFORM ? uniform_tile(found, tile, lengths, starts, query_lengths, count, sequences, pages)
                                  : find_tile<ROWS>(found, tile, lengths, starts, query_lengths, count, sequences, pages, 1, FEW ? FEW : 0xffffffffu,
                                                    is_shared ? LONG : 0, is_shared ? 0xffffffffu : LONG - 1);
    if (!has_tile && LONG && is_shared) {
      is_shared = false;
      // Those come first that have shared none.
      const u32 shared = (tile - found.at) * KV_HEADS * CLUSTER, sharing = shared < gridDim.x ? shared : gridDim.x;
      block = (blockIdx.x < sharing ? gridDim.x : 0) + blockIdx.x - sharing;
      continue;
    }
    if (!has_tile) {
      if (EARLY) PW_WAIT();
      return;
    }
    const u32 sequence = found.sequence, queries = found.queries, length = found.length;
    const u32 head0 = kv_head * GROUP, first_row = found.at * ROWS, left = queries * GROUP - first_row;
    const u32 tile_rows = left < ROWS ? left : ROWS;
    const u32 fewest = seen_by(first_row / GROUP, queries, length);
    const u32 most = seen_by((first_row + tile_rows - 1) / GROUP, queries, length);
    const i32 start = found.start;
    // In pages: where the range starts, and what of it is seen.
#if SLIDING
    // Ranges are of what the sequence sees, so that they depend on it alone; a later tile sees less of them.
    const u32 begin = seen_from(0, queries, length) / PAGE, range = blocks_for(blocks_for(length, PAGE) - begin, ranges_of_tile);
    const u32 cut = begin + split * range, own_first = seen_from(first_row / GROUP, queries, length) / PAGE;
    const u32 latest = seen_from((first_row + tile_rows - 1) / GROUP, queries, length);
    const u32 first = cut < own_first ? own_first : cut;
    const u32 upto = blocks_for(most, PAGE) < cut + range ? blocks_for(most, PAGE) : cut + range;
#else
    const u32 range = blocks_for(blocks_for(length, PAGE), ranges_of_tile), first = split * range;
    const u32 upto = blocks_for(most, PAGE) < first + range ? blocks_for(most, PAGE) : first + range;
#endif
    const u32 mine = first + warp < upto ? blocks_for(upto - first - warp, WARPS) : 0;

    Bytes16* own = staged + warp * (STAGES * STAGE);
    // A lane has the page of one in 32 of this warp; a byte says how many keys a stage holds.
    i32 page_of = -1;
    u32 held = 0;
    auto find_pages = [&](u32 from) {
      const u32 number = from + lane;
      page_of = number < mine ? table[(u64)sequence * pages + first + warp + number * WARPS] : -1;
    };
    auto stage = [&](u32 number, u32 slot) {
      if (number != 0 && number % 32 == 0) find_pages(number);
      const i32 page = __shfl_sync(0xffffffffu, page_of, number % 32);
      const u64 at = (u64)(u32)page * PAGE, pool = page >= 0 && at < kv_rows ? kv_rows - at : 0;
      const u32 keys_left = most - (first + warp + number * WARPS) * PAGE, seen = keys_left < PAGE ? keys_left : PAGE;
      const u32 there = pool < seen ? (u32)pool : seen;
      held = (held & ~(0xffu << slot * 8)) | there << slot * 8;
      stage_page<KEY_CHUNKS>(own + slot * STAGE, k, kv_head, there != 0 ? page : 0, there);
      stage_page<VALUE_CHUNKS>(own + slot * STAGE + PAGE * KEY_STRIDE, v, kv_head, there != 0 ? page : 0, there);
    };
    find_pages(0);
    // A step writes the keys and values of its own tokens alone, which are the last ones.
    const u32 written = length > queries ? (length - queries) / PAGE : 0;
    u32 ahead = 0;
    if (AHEAD) {
#pragma unroll
      for (int s = 0; s < STAGES; ++s) {
        if (s < mine && first + warp + s * WARPS < written) {
          stage(s, s);
          group_copies();
          ahead = s + 1;
        }
      }
    }
    if (EARLY) PW_WAIT();

    Bytes16* queries_at = staged + WARPS * (STAGES * STAGE);
    if (QUERY_STAGED) {
      for (u32 chunk = threadIdx.x; chunk < ROWS * KEY_CHUNKS; chunk += THREADS) {
        const u32 line = chunk / KEY_CHUNKS, column = chunk % KEY_CHUNKS;
        const u32 row = first_row + line, token = row / GROUP;
        const bool there = token < queries && start >= 0 && (u32)start + token < rows;
        const u64 at = (u64)(there ? start + token : 0) * HEADS + head0 + row % GROUP;
        copy_async_if(there, queries_at + line * KEY_STRIDE + column, q + at * DIM + column * 8);
      }
      group_copies();
    }
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      if (AHEAD && s < ahead) continue;
      if (s < mine) stage(s, s);
      group_copies();
    }
#if SLIDING
    u32 least[2];
#endif
    // Asked for last, and here first.
    u32 seen[2], query[QUERY_STAGED ? 1 : DIM / 16][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const u32 row = first_row + quad + h * 8, token = row / GROUP;
      const bool valid = token < queries && start >= 0 && (u32)start + token < rows;
      seen[h] = seen_by(token, queries, length);
#if SLIDING
      least[h] = seen_from(token, queries, length);
#endif
      if (!QUERY_STAGED) {
        const u32* from = (const u32*)(q + ((u64)(valid ? start + token : 0) * HEADS + head0 + row % GROUP) * DIM);
#pragma unroll
        for (int d = 0; d < DIM / 16; ++d) {
          query[QUERY_STAGED ? 0 : d][h] = valid ? from[d * 8 + in_quad] : 0;
          query[QUERY_STAGED ? 0 : d][2 + h] = valid ? from[d * 8 + 4 + in_quad] : 0;
        }
      }
    }
    if (QUERY_STAGED) {
      groups_done_but<STAGES>();
      __syncthreads();
    }

    float top[2] = {-INF_F, -INF_F}, sum[2] = {0.0f, 0.0f}, o[VALUE_DIM / 8][4];
#pragma unroll
    for (int n = 0; n < VALUE_DIM / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;
#if SINKS
    // The sink is a score of no key, which one warp of one range has seen.
    const bool has_sink = warp == 0 && split == 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (has_sink) top[h] = sink_score(sinks[head0 + (first_row + quad + h * 8) % GROUP]);
      if (has_sink && in_quad == 0) sum[h] = 1.0f;
    }
#endif

    u32 slot = 0;
    for (u32 number = 0; number < mine; ++number) {
      // What this lane copied has come, then what all lanes did.
      groups_done_but<STAGES - 1>();
      __syncwarp();
      const Bytes16* keys = own + slot * STAGE;
      const Bytes16* values = keys + PAGE * KEY_STRIDE;
      float score[2][4];
      score_keys<16, DIM / 16, KEY_STRIDE, QUERY_STAGED>(score, keys, queries_at, query, lane);
      const u32 base = (first + warp + number * WARPS) * PAGE, there = held >> slot * 8 & 0xff;
#if CAPPED
      cap_scores(score, scale);
#endif
#if SLIDING
      if (there < PAGE || base + PAGE > fewest || base < latest) {
#else
      if (there < PAGE || base + PAGE > fewest) {
#endif
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const u32 key = n * 8 + in_quad * 2 + i % 2;
#if SLIDING
            if (key >= there || base + key >= seen[i / 2] || base + key < least[i / 2]) score[n][i] = -INF_F;
#else
            if (key >= there || base + key >= seen[i / 2]) score[n][i] = -INF_F;
#endif
          }
      }
      float from[2];
#if CAPPED
      raise_top(score, CAP, top, sum, o, from);
      add_values<VALUE_STRIDE>(score, CAP, from, values, sum, o, lane);
#else
      raise_top(score, scale, top, sum, o, from);
      add_values<VALUE_STRIDE>(score, scale, from, values, sum, o, lane);
#endif
      // All lanes are done with this stage.
      __syncwarp();
      if (number + STAGES < mine) stage(number + STAGES, slot);
      group_copies();
      slot = slot + 1 < STAGES ? slot + 1 : 0;
    }

    // Of this warp's stages nothing is read any more.
    if (CLUSTER > 1 && is_shared) cluster_arrive();
    // The warps' results become one; they lie where their stages were.
    float* results = (float*)own;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const u32 row = quad + h * 8;
      const float all = lanes<Sum, 4>(sum[h]);
      if (in_quad == 0) {
        warp_top[warp][row] = top[h];
        warp_sum[warp][row] = all;
      }
#if SINKS
      if (row >= tile_rows || (mine == 0 && !has_sink)) continue;
#else
      if (row >= tile_rows || mine == 0) continue;
#endif
#pragma unroll
      for (int n = 0; n < VALUE_DIM / 8; ++n) {
        results[row * RESULT_STRIDE + n * 8 + in_quad * 2] = o[n][2 * h];
        results[row * RESULT_STRIDE + n * 8 + in_quad * 2 + 1] = o[n][2 * h + 1];
      }
    }
    __syncthreads();
    if (CLUSTER > 1 && is_shared) cluster_wait();
    Pair* const ranges = (Pair*)(staged + RANGES_AT);
    const u32 share = (tile_rows * PAIRS + CLUSTER - 1) / CLUSTER;
    for (u32 at = threadIdx.x; at < tile_rows * PAIRS; at += THREADS) {
      const u32 line = at / PAIRS, column = at % PAIRS * 2;
      const u32 row = first_row + line, token = row / GROUP, head = head0 + row % GROUP;
      if (start < 0 || (u32)start + token >= rows) continue;
      float higher = -INF_F, all = 0.0f, x = 0.0f, y = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) higher = fmaxf(higher, warp_top[w][line]);
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        // A warp that has seen nothing has written nothing.
        if (warp_top[w][line] == -INF_F) continue;
        const float part = power_of_two(warp_top[w][line] - higher);
        const float* weighed = (const float*)(staged + w * (STAGES * STAGE)) + line * RESULT_STRIDE + column;
        all = fmaf(warp_sum[w][line], part, all);
        x = fmaf(weighed[0], part, x);
        y = fmaf(weighed[1], part, y);
      }
      if (CLUSTER > 1 && is_shared) {
        if (at % PAIRS < CLUSTER) store_cluster(&weights[split][line], at % PAIRS, higher, all);
        if (higher != -INF_F) store_cluster(ranges + split * SHARE + at % share, at / share, x, y);
      } else if (ranges_of_tile == 1) {
        *(u32*)(out + ((u64)(start + token) * HEADS + head) * VALUE_DIM + column) = pair_of<Q>(x / all, y / all);
      } else {
        float* to = partial + ((place_of(sequence, start, token) * HEADS + head) * splits + split) * PARTIAL;
        if (column == 0) {
          to[VALUE_DIM] = higher;
          to[VALUE_DIM + 1] = all;
        }
        // Of a range that shows nothing no more is read.
        if (higher == -INF_F) continue;
        to[column] = x;
        to[column + 1] = y;
      }
    }
    if (CLUSTER > 1 && is_shared) {
      cluster_arrive();
      cluster_wait();
      for (u32 at = threadIdx.x; at < share; at += THREADS) {
        const u32 pair = split * share + at, line = pair / PAIRS;
        const u32 row = first_row + line, token = row / GROUP, head = head0 + row % GROUP;
        if (line >= tile_rows || start < 0 || (u32)start + token >= rows) continue;
        float higher = -INF_F, all = 0.0f, x = 0.0f, y = 0.0f;
#pragma unroll
        for (int z = 0; z < CLUSTER; ++z) higher = fmaxf(higher, weights[z][line].x);
#pragma unroll
        for (int z = 0; z < CLUSTER; ++z) {
          const Pair weight = weights[z][line];
          if (weight.x == -INF_F) continue;
          const float part = power_of_two(weight.x - higher);
          all = fmaf(weight.y, part, all);
          x = fmaf(ranges[z * SHARE + at].x, part, x);
          y = fmaf(ranges[z * SHARE + at].y, part, y);
        }
        *(u32*)(out + ((u64)(start + token) * HEADS + head) * VALUE_DIM + pair % PAIRS * 2) = pair_of<Q>(x / all, y / all);
      }
    }
    if (!STAYS) return;
    block += is_shared ? gridDim.x / CLUSTER : gridDim.x;
    // The next tile takes the same shared memory.
    __syncthreads();
  }
}

// Attention within segments without tensor cores: a warp takes a query and head. Its lanes take a
// key each for the scores and columns of the values for the sum.
enum { THREADS = 128, TILE = 4, COLUMNS = (VALUE_DIM + 31) / 32 };

extern "C" __global__ void __launch_bounds__(THREADS) segment_attention(
    const Q* q, const K* k, const K* v, const i32* starts, const i32* query_lengths, const i32* key_starts,
    const i32* key_lengths, Q* out, const i32* counts, u32 rows, u32 key_rows, u32 segments, u32 segment_symbol,
    float scale) {
  PW_LAUNCH_DEPENDENTS();
  __shared__ float queries_at[TILE][DIM];
  PW_WAIT();
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Tile found;
  if (!find_tile<TILE>(found, blockIdx.x, key_lengths, starts, query_lengths, counts + segment_symbol, segments, MOST_PAGES, 1, 0xffffffffu)) return;
  const Keys keys_of = keys_in(found, key_starts, key_rows);
  const u32 row = found.at * TILE + warp, token = row / GROUP;
  if (token >= found.queries || found.start < 0 || (u32)found.start + token >= rows) return;
  const u64 result = (u64)((u32)found.start + token) * HEADS + blockIdx.y * GROUP + row % GROUP;
  float* query = queries_at[warp];
  for (u32 d = lane; d < DIM; d += 32) query[d] = widen(q[result * DIM + d]);
  __syncwarp();
  const Range seen = keys_seen_by(token, found.queries, keys_of.length);
  float top = -INF_F, sum = 0.0f, o[COLUMNS];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) o[c] = 0.0f;
  for (u32 base = seen.from; base < seen.to; base += 32) {
    const u32 position = base + lane;
    float score = -INF_F;
    if (position < seen.to) {
      const K* key = k + ((u64)(keys_of.start + position) * KV_HEADS + blockIdx.y) * DIM;
      float dot = 0.0f;
      for (u32 d = 0; d < DIM; ++d) dot = fmaf(query[d], widen(key[d]), dot);
      score = dot * scale;
    }
    const float higher = fmaxf(top, lanes<Largest, 32>(score));
    const float from = higher == -INF_F ? 0.0f : higher;
    const float shrink = exp2f(top - from), share = exp2f(score - from);
    top = higher;
    sum = sum * shrink + lanes<Sum, 32>(share);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) o[c] *= shrink;
    const u32 there = seen.to - base < 32 ? seen.to - base : 32;
    for (u32 j = 0; j < there; ++j) {
      const float weight = __shfl_sync(0xffffffffu, share, j);
      const K* value = v + ((u64)(keys_of.start + base + j) * KV_HEADS + blockIdx.y) * VALUE_DIM;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const u32 column = c * 32 + lane;
        if (VALUE_DIM % 32 == 0 || column < VALUE_DIM) o[c] = fmaf(weight, widen(value[column]), o[c]);
      }
    }
  }
  const float all = seen.from < seen.to ? sum : 1.0f;
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    const u32 column = c * 32 + lane;
    if (VALUE_DIM % 32 == 0 || column < VALUE_DIM) narrow(out[result * VALUE_DIM + column], o[c] / all);
  }
}

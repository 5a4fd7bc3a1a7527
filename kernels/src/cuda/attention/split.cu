// Attention of tiles of TILE query rows over a range of keys. A query row is a token and one of
// the GROUP heads that share a key-value head. The keys of a sequence are cut into `splits`
// ranges by its length alone; a lane holds 8 neighbouring elements of a head, LANES lanes a key.
enum { WARPS = 4, SLOTS = 32 / LANES, AHEAD = 4 };

// Elements first .. first + 8 of a head of WIDTH; what is outside is 0.
template <int WIDTH, class T> DEVICE void load_head(float (&to)[8], const T* head, u32 first, bool valid) {
  if (WIDTH % 8 == 0) {
    Pack<T, 8> pack;
    if (valid && first < WIDTH) load<16>(pack, head + first);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = valid && first < WIDTH ? widen(pack.at[i]) : 0.0f;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = valid && first + i < WIDTH ? widen(head[first + i]) : 0.0f;
  }
}

// Two partial results of the same row become one.
DEVICE void merge(float& m, float& l, float (&o)[8], float m2, float l2, const float (&o2)[8]) {
  const float top = fmaxf(m, m2);
  const float a = m == -INF_F ? 0.0f : exp2f(m - top), b = m2 == -INF_F ? 0.0f : exp2f(m2 - top);
  m = top;
  l = l * a + l2 * b;
#pragma unroll
  for (int i = 0; i < 8; ++i) o[i] = (a == 0.0f ? 0.0f : o[i] * a) + (b == 0.0f ? 0.0f : o2[i] * b);
}

// Grid: (tiles, key-value heads, splits).
extern "C" __global__ void __launch_bounds__(128) attention_split(
    const Q* q, const K* k, const K* v, const i32* table, const i32* lengths, const i32* starts,
    const i32* query_lengths, Q* out, float* partial, const i32* counts,
#if SINKS
    u32 rows, u32 sequences, u32 sequence_symbol, u64 kv_rows, u32 pages, u32 splits, float scale, const SINK* sinks) {
#else
    u32 rows, u32 sequences, u32 sequence_symbol, u64 kv_rows, u32 pages, u32 splits, float scale) {
#endif
  PW_LAUNCH_DEPENDENTS();
  __shared__ float shared_m[WARPS][TILE], shared_l[WARPS][TILE], shared_o[WARPS][TILE][LANES * 8];
  PW_WAIT();
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 part = lane % LANES, slot = lane / LANES;
  Tile found;
  if (!find_tile<TILE>(found, blockIdx.x, lengths, starts, query_lengths, counts + sequence_symbol, sequences, pages, 1, 0xffffffffu)) return;
  const u32 sequence = found.sequence, tile = found.at;
  const u32 queries = found.queries, length = found.length, head0 = blockIdx.y * GROUP;
  const i32 start = found.start;
#if SLIDING
  // Ranges are of what the sequence sees, so that they depend on it alone; a later tile sees less of them.
  const u32 begin = seen_from(0, queries, length) / PAGE, range = blocks_for(blocks_for(length, PAGE) - begin, splits) * PAGE;
  const u32 cut = begin * PAGE + blockIdx.z * range, own_first = seen_from(tile * TILE / GROUP, queries, length) / PAGE * PAGE;
  const u32 first = cut < own_first ? own_first : cut;
  u32 least[TILE];
#else
  const u32 range = blocks_for(blocks_for(length, PAGE), splits) * PAGE;
  const u32 first = blockIdx.z * range;
#endif
  u32 seen[TILE], most = 0;
  float query[TILE][8], m[TILE], l[TILE], o[TILE][8];
#pragma unroll
  for (int r = 0; r < TILE; ++r) {
    const u32 row = tile * TILE + r, token = row / GROUP, head = head0 + row % GROUP;
    const bool valid = token < queries && start >= 0 && (u32)start + token < rows;
    seen[r] = valid ? seen_by(token, queries, length) : 0;
    most = seen[r] > most ? seen[r] : most;
#if SLIDING
    least[r] = seen_from(token, queries, length);
#endif
    load_head<DIM>(query[r], q + ((u64)(valid ? start + token : 0) * HEADS + head) * DIM, part * 8, valid);
    m[r] = -INF_F;
    l[r] = 0.0f;
#if SINKS
    // The sink is a score of no key, which one slot of one range has seen.
    if (warp == 0 && slot == 0 && blockIdx.z == 0) {
      m[r] = sink_score(sinks[head]);
      l[r] = 1.0f;
    }
#endif
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      query[r][i] *= scale;
      o[r][i] = 0.0f;
    }
  }
#if SLIDING
  const u32 end = cut + range < most ? cut + range : most;
#else
  const u32 end = first + range < most ? first + range : most;
#endif
  for (u32 base = first + warp * SLOTS * AHEAD; base < end; base += WARPS * SLOTS * AHEAD) {
    float key[AHEAD][8], value[AHEAD][8], score[TILE][AHEAD];
    bool valid[AHEAD];
    u32 position[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      position[a] = base + a * SLOTS + slot;
      valid[a] = position[a] < end;
      const i32 page = valid[a] ? table[(u64)sequence * pages + position[a] / PAGE] : 0;
      const u64 at = (u64)(i64)page * PAGE + position[a] % PAGE;
      valid[a] = valid[a] && at < kv_rows;
      load_head<DIM>(key[a], k + ((valid[a] ? at : 0) * KV_HEADS + blockIdx.y) * DIM, part * 8, valid[a]);
      load_head<VALUE_DIM>(value[a], v + ((valid[a] ? at : 0) * KV_HEADS + blockIdx.y) * VALUE_DIM, part * 8, valid[a]);
    }
#pragma unroll
    for (int r = 0; r < TILE; ++r) {
      float top = m[r];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(query[r][i], key[a][i], sum);
        sum = lanes<Sum, LANES>(sum);
#if CAPPED
        sum = CAP * tanhf(sum);
#endif
#if SLIDING
        score[r][a] = valid[a] && position[a] < seen[r] && position[a] >= least[r] ? sum : -INF_F;
#else
        score[r][a] = valid[a] && position[a] < seen[r] ? sum : -INF_F;
#endif
        top = fmaxf(top, score[r][a]);
      }
      const float shrink = m[r] == -INF_F ? 0.0f : exp2f(m[r] - top);
      m[r] = top;
      l[r] *= shrink;
#pragma unroll
      for (int i = 0; i < 8; ++i) o[r][i] *= shrink;
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) {
        // Chosen, not multiplied by 0: what is masked may be NaN.
        if (valid[a] && position[a] < seen[r] && score[r][a] != -INF_F) {
          const float share = exp2f(score[r][a] - top);
          l[r] += share;
#pragma unroll
          for (int i = 0; i < 8; ++i) o[r][i] = fmaf(share, value[a][i], o[r][i]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < TILE; ++r) {
#pragma unroll
    for (int mask = LANES; mask < 32; mask *= 2) {
      float o2[8];
      const float m2 = from_lane(m[r], mask), l2 = from_lane(l[r], mask);
#pragma unroll
      for (int i = 0; i < 8; ++i) o2[i] = from_lane(o[r][i], mask);
      // The lower slot first on both sides, so that both get the same bits.
      if (lane & mask) {
        float m1 = m2, l1 = l2, o1[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) o1[i] = o2[i];
        merge(m1, l1, o1, m[r], l[r], o[r]);
        m[r] = m1;
        l[r] = l1;
#pragma unroll
        for (int i = 0; i < 8; ++i) o[r][i] = o1[i];
      } else {
        merge(m[r], l[r], o[r], m2, l2, o2);
      }
    }
    if (slot == 0) {
      shared_m[warp][r] = m[r];
      shared_l[warp][r] = l[r];
#pragma unroll
      for (int i = 0; i < 8; ++i) shared_o[warp][r][part * 8 + i] = o[r][i];
    }
  }
  __syncthreads();
  for (u32 r = warp; r < TILE; r += WARPS) {
    const u32 row = tile * TILE + r, token = row / GROUP, head = head0 + row % GROUP;
    if (token >= queries || start < 0 || (u32)start + token >= rows) continue;
    float top = -INF_F, sum = 0.0f;
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, shared_m[w][r]);
    float share[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      share[w] = shared_m[w][r] == -INF_F ? 0.0f : exp2f(shared_m[w][r] - top);
      sum += shared_l[w][r] * share[w];
    }
    const u64 at = (u64)(start + token) * HEADS + head;
    const u64 place = (place_of(sequence, start, token) * HEADS + head) * splits + blockIdx.z;
    for (u32 i = lane; i < VALUE_DIM; i += 32) {
      float x = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) x += share[w] == 0.0f ? 0.0f : shared_o[w][r][i] * share[w];
      if (splits == 1) narrow(out[at * VALUE_DIM + i], x / sum);
      else partial[place * PARTIAL + i] = x;
    }
    if (splits != 1 && lane == 0) {
      partial[place * PARTIAL + VALUE_DIM] = top;
      partial[place * PARTIAL + VALUE_DIM + 1] = sum;
    }
  }
}

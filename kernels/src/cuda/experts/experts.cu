// Rows through the experts that their logits choose. A pair is a row and one of its experts: row * TOP
// plus the place among the row's experts.
enum { WARPS = 4 };

// What the launches tell each other, in scratch.
struct Lists {
  // Of each pair.
  i32* experts;
  float* weights;
  // The pairs by expert, and by row of one.
  i32* pairs;
  // Where the pairs of each expert begin in that list; then how many there are.
  i32* starts;
  // Of each pair what its gate let through, and what its expert gives.
  X* gated;
  X* given;
};
DEVICE Lists lists_in(u8* scratch, u32 rows) {
  const u64 pairs = (u64)rows * TOP;
  u64 at = 0;
  auto take = [&](u64 bytes) {
    u8* const here = scratch + at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  Lists lists;
  lists.experts = (i32*)take(pairs * 4);
  lists.weights = (float*)take(pairs * 4);
  lists.pairs = (i32*)take(pairs * 4);
  lists.starts = (i32*)take((EXPERTS + 1) * 4);
  lists.gated = (X*)take(pairs * INNER * sizeof(X));
  lists.given = (X*)take(pairs * WIDTH * sizeof(X));
  return lists;
}
DEVICE u32 true_rows(const i32* counts, u32 rows, u32 base, u32 factor, u32 symbol) {
  const u32 real = factor ? base + factor * (u32)counts[symbol] : rows;
  return real < rows ? real : rows;
}

DEVICE float score(float logit, float top) {
  return SOFTMAX ? expf(logit - top) : 1.0f / (1.0f + expf(-logit));
}

// A warp takes a row: the largest logit, then the first one after that, and so on.
extern "C" __global__ void __launch_bounds__(128) experts_route(
    const L* logits, u8* scratch, const i32* counts, u32 rows, u32 real_base, u32 real_factor, u32 real_symbol,
    float scale) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
  if (row >= true_rows(counts, rows, real_base, real_factor, real_symbol)) return;
  const L* const of = logits + (u64)row * EXPERTS;
  const Lists lists = lists_in(scratch, rows);
  i32* const experts = lists.experts + (u64)row * TOP;
  float* const weights = lists.weights + (u64)row * TOP;
  const i32 none = 0x7fffffff;
  float top = 0.0f, last = 0.0f, sum = SOFTMAX ? 0.0f : LEAST_SUM;
  i32 last_expert = none;
  for (u32 place = 0; place < TOP; ++place) {
    float best = 0.0f;
    i32 expert = none;
    for (i32 e = lane; e < EXPERTS; e += 32) {
      const float logit = widen(of[e]);
      const bool is_left = last_expert == none || before(last, last_expert, logit, e);
      if (is_left && (expert == none || before(logit, e, best, expert))) { best = logit; expert = e; }
    }
    first_of<32>(best, expert, lane, 0, (float*)0, (i32*)0);
    if (place == 0) top = best;
    const float weight = score(best, top);
    sum += weight;
    if (lane == 0) { experts[place] = expert; weights[place] = weight; }
    last = best;
    last_expert = expert;
  }
  if (!RENORMALIZE) {
    sum = SOFTMAX ? 0.0f : 1.0f;
    if (SOFTMAX) {
      for (u32 e = lane; e < EXPERTS; e += 32) sum += score(widen(of[e]), top);
      sum = lanes<Sum, 32>(sum);
    }
  }
  // What the first lane wrote is seen by all.
  __syncwarp();
  const float factor = scale / sum;
  for (u32 place = lane; place < TOP; place += 32) weights[place] *= factor;
}

// A warp takes an expert: how many pairs those before it have, then its own in order.
extern "C" __global__ void __launch_bounds__(32) experts_list(
    u8* scratch, const i32* counts, u32 rows, u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 lane = threadIdx.x, pairs = true_rows(counts, rows, real_base, real_factor, real_symbol) * TOP;
  const i32 own = blockIdx.x;
  const Lists lists = lists_in(scratch, rows);
  i32 first = 0;
#pragma unroll 4
  for (u32 pair = lane; pair < pairs; pair += 32) first += lists.experts[pair] < own ? 1 : 0;
  first = lanes<Sum, 32>(first);
  u32 next = first;
#pragma unroll 4
  for (u32 base = 0; base < pairs; base += 32) {
    const u32 pair = base + lane;
    const bool is_own = pair < pairs && lists.experts[pair] == own;
    const u32 all = __ballot_sync(0xffffffffu, is_own);
    if (is_own) lists.pairs[next + __popc(all & ((1u << lane) - 1))] = pair;
    next += __popc(all);
  }
  if (lane == 0) {
    lists.starts[own] = first;
    if (own == EXPERTS - 1) lists.starts[EXPERTS] = next;
  }
}

// Up to TILE pairs of one expert.
struct Share { u32 expert, count; const i32* pairs; };

// The share of an index, by every warp alone: those of the first expert are first.
DEVICE bool find_share(Share& share, const Lists& lists, u32 index) {
  const u32 lane = threadIdx.x % 32;
  u32 ahead = 0;
  for (u32 base = 0; base < EXPERTS; base += 32) {
    const u32 expert = base + lane;
    const u32 own = expert < EXPERTS ? blocks_for(lists.starts[expert + 1] - lists.starts[expert], TILE) : 0;
    u32 upto = own;
#pragma unroll
    for (u32 by = 1; by < 32; by *= 2) {
      const u32 lower = __shfl_up_sync(0xffffffffu, upto, by);
      if (lane >= by) upto += lower;
    }
    const u32 found = __ballot_sync(0xffffffffu, index < ahead + upto);
    if (found) {
      const u32 at = __ffs(found) - 1;
      const u32 skipped = (index - ahead - __shfl_sync(0xffffffffu, upto - own, at)) * TILE;
      share.expert = base + at;
      const u32 begin = lists.starts[share.expert] + skipped, end = lists.starts[share.expert + 1];
      share.pairs = lists.pairs + begin;
      share.count = end - begin < TILE ? end - begin : TILE;
      return true;
    }
    ahead += __shfl_sync(0xffffffffu, upto, 31);
  }
  return false;
}

template <int V, class T> DEVICE void load_some(Pack<T, V>& to, const T* from) {
  load<(sizeof(T) * V < 16 ? sizeof(T) * V : 16)>(to, from);
}
// Of a weight that no other block reads soon.
template <int V, class T> DEVICE void load_once(Pack<T, V>& to, const T* from) {
  enum { PIECES = sizeof(T) * V / 16 };
  if (PIECES == 0) {
    load_some(to, from);
  } else {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) ((Bytes16*)to.at)[i] = load_weight((const Bytes16*)from + i);
  }
}

// sums[m][c] = x[m] times w[c], in every lane: each adds up its shares of DEPTH in order, then the lanes
// are added. So a sum does not depend on M.
template <int DEPTH, int M, int C>
DEVICE void dots(float (&sums)[M][C], const X* const (&x)[M], const W* const (&w)[C]) {
  enum { V = DEPTH % 8 == 0 ? 8 : 1 };
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int c = 0; c < C; ++c) sums[m][c] = 0.0f;
  for (u32 at = threadIdx.x % 32 * V; at < DEPTH; at += 32 * V) {
    Pack<W, V> weights[C];
#pragma unroll
    for (int c = 0; c < C; ++c) load_once(weights[c], w[c] + at);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      Pack<X, V> values;
      load_some(values, x[m] + at);
#pragma unroll
      for (int i = 0; i < V; ++i)
#pragma unroll
        for (int c = 0; c < C; ++c) sums[m][c] = fmaf(widen(values.at[i]), widen(weights[c].at[i]), sums[m][c]);
    }
  }
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int c = 0; c < C; ++c) sums[m][c] = lanes<Sum, 32>(sums[m][c]);
}

// Two neighbouring columns of the gate and of what it gates, for up to M pairs.
template <int M> DEVICE void gate_pairs(const Share& share, const Lists& lists, const X* x, const W* gate_up, u32 column) {
  const W* const expert = gate_up + (u64)share.expert * 2 * INNER * WIDTH;
  const u32 other = column + 1 < INNER ? column + 1 : column, lane = threadIdx.x % 32;
  const W* const w[4] = {expert + (u64)column * WIDTH, expert + (u64)other * WIDTH,
                         expert + (u64)(INNER + column) * WIDTH, expert + (u64)(INNER + other) * WIDTH};
  const X* rows[M];
#pragma unroll
  for (int m = 0; m < M; ++m) rows[m] = x + (u64)(share.pairs[m < share.count ? m : 0] / TOP) * WIDTH;
  float sums[M][4];
  dots<WIDTH, M, 4>(sums, rows, w);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float gate = sums[m][c];
      if (lane == m * 2 + c && m < share.count && column + c < INNER)
        narrow(lists.gated[(u64)share.pairs[m] * INNER + column + c], gate / (1.0f + expf(-gate)) * sums[m][2 + c]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(128) experts_gated(const X* x, const W* gate_up, u8* scratch, u32 rows) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 column = (blockIdx.y * WARPS + threadIdx.x / 32) * 2;
  const Lists lists = lists_in(scratch, rows);
  Share share;
  if (column >= INNER || !find_share(share, lists, blockIdx.x)) return;
  if (share.count == 1) gate_pairs<1>(share, lists, x, gate_up, column);
  else if (share.count == 2) gate_pairs<2>(share, lists, x, gate_up, column);
  else if (share.count <= 4) gate_pairs<4>(share, lists, x, gate_up, column);
  else gate_pairs<8>(share, lists, x, gate_up, column);
}

// Four neighbouring columns of what experts give, for up to M pairs.
template <int M> DEVICE void give_pairs(const Share& share, const Lists& lists, const W* down, u32 column) {
  const W* const expert = down + (u64)share.expert * WIDTH * INNER;
  const u32 lane = threadIdx.x % 32;
  const W* w[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) w[c] = expert + (u64)(column + c < WIDTH ? column + c : column) * INNER;
  const X* rows[M];
#pragma unroll
  for (int m = 0; m < M; ++m) rows[m] = lists.gated + (u64)share.pairs[m < share.count ? m : 0] * INNER;
  float sums[M][4];
  dots<INNER, M, 4>(sums, rows, w);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (lane == m * 4 + c && m < share.count && column + c < WIDTH)
        narrow(lists.given[(u64)share.pairs[m] * WIDTH + column + c], sums[m][c]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(128) experts_down(const W* down, u8* scratch, u32 rows) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 column = (blockIdx.y * WARPS + threadIdx.x / 32) * 4;
  const Lists lists = lists_in(scratch, rows);
  Share share;
  if (column >= WIDTH || !find_share(share, lists, blockIdx.x)) return;
  if (share.count == 1) give_pairs<1>(share, lists, down, column);
  else if (share.count == 2) give_pairs<2>(share, lists, down, column);
  else if (share.count <= 4) give_pairs<4>(share, lists, down, column);
  else give_pairs<8>(share, lists, down, column);
}

// What the experts of a row give, in the order in which it chose them.
extern "C" __global__ void __launch_bounds__(256) experts_combine(
    u8* scratch, X* out, const i32* counts, u32 rows, u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 row = blockIdx.x, column = blockIdx.y * 256 + threadIdx.x;
  if (column >= WIDTH || row >= true_rows(counts, rows, real_base, real_factor, real_symbol)) return;
  const Lists lists = lists_in(scratch, rows);
  float sum = 0.0f;
#pragma unroll 4
  for (u32 pair = row * TOP; pair < (row + 1) * TOP; ++pair)
    sum = fmaf(lists.weights[pair], widen(lists.given[(u64)pair * WIDTH + column]), sum);
  narrow(out[(u64)row * WIDTH + column], sum);
}

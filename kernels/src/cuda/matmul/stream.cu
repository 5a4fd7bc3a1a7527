// y[m, n] = sum over k of x[m, k] * w[n, k] for at most M rows: every weight is read once, 16
// bytes at a time, R * J loads of a lane in flight; the first of them are issued before the
// wait, and each of the others as soon as its registers are free. A unit is R neighbouring rows
// of w, which SPLIT neighbouring warps take together. A sum runs over a lane's chunks in order
// (even and odd elements apart), then over the lanes, then over the warps: its order is that of
// k and of the launch, whatever M is.
enum {
  E = 16 / sizeof(W),
  WARPS = 8,
  GROUPS = WARPS / SPLIT,
  CHUNKS = DEPTH / E,
  ACROSS = 32 * SPLIT,
  ROUNDS = (CHUNKS + ACROSS * J - 1) / (ACROSS * J),
  WHOLE = CHUNKS % (ACROSS * J) == 0,
  UNITS = (COLUMNS + R - 1) / R,
  // The one row of a lane's chunks stays in registers where a unit is one round.
  KEPT = M == 1 && ROUNDS == 1 && KEEP,
  // Sums of a unit: SPREAD lanes hold each in the end.
  SUMS = R * M,
  SPREAD = 32 / SUMS
};

// Opaque, so that what is read from it is widened at each use and not held wide.
template <class T, int V> DEVICE void keep_narrow(Pack<T, V>& pack) {
  u32* words = (u32*)pack.at;
#pragma unroll
  for (int i = 0; i < (int)sizeof(T) * V / 4; ++i) asm volatile("" : "+r"(words[i]));
}

// One sum for each SPREAD neighbouring lanes of what all lanes have: at each step a lane gives
// half of its sums away and gets the other half's.
DEVICE float lane_sum(float (&sums)[SUMS]) {
  const u32 lane = threadIdx.x % 32;
  u32 mask = 16;
#pragma unroll
  for (int n = SUMS / 2; n > 0; n /= 2, mask /= 2) {
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float given = upper ? sums[i] : sums[i + n];
      sums[i] = (upper ? sums[i + n] : sums[i]) + from_lane(given, mask);
    }
  }
#pragma unroll
  for (int by = SPREAD / 2; by > 0; by /= 2) sums[0] += from_lane(sums[0], by);
  return sums[0];
}

extern "C" __global__ void __launch_bounds__(256, 2) matmul(
    PARAMETERS, const i32* counts,
    u32 rows, u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  __shared__ float shares[2][SPLIT > 1 ? SUMS : 1][WARPS];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / SPLIT, part = warp % SPLIT;
  const u32 step = gridDim.x * GROUPS;
  // Counted block-fastest, so that every multiprocessor gets the same share.
  u32 unit = group * gridDim.x + blockIdx.x;
  Bytes16 held[R][J];
  // The chunks of a lane at one place of a round, of all rows of a unit.
  auto fetch = [&](u32 unit, u32 round, int j) {
    const u32 chunk = (round * J + j) * ACROSS + part * 32 + lane;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      u32 row = unit * R + r;
      if (COLUMNS % R != 0 && row >= COLUMNS) row = COLUMNS - 1;
      const W* from = w + (u64)row * DEPTH + (u64)chunk * E;
      held[r][j] = WHOLE ? load_weight(from) : load_weight_if(chunk < CHUNKS, from);
    }
  };
  if (unit < UNITS) {
#pragma unroll
    for (int j = 0; j < J; ++j) fetch(unit, 0, j);
  }
#ifdef BEFORE
  Before before;
  before.ahead(BEFORE, (X*)staged);
#endif
  // No kernel of a step writes its counts.
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = real < rows ? real : rows;
  PW_WAIT();
  // The one element of a unit that this lane finishes, if it is one of those that do.
  const u32 own = lane / SPREAD, own_row = own / M, own_m = own % M;
  const bool finishes = part == 0 && lane % SPREAD == 0 && own_m < real;
  auto is_own = [&](u32 unit) { return finishes && (COLUMNS % R == 0 || unit * R + own_row < COLUMNS); };
#ifdef AFTER
  After after;
  if (unit < UNITS && is_own(unit)) after.ahead(AFTER, own_m, unit * R + own_row);
#endif
#ifdef BEFORE
  const X* const xs = (const X*)staged;
  before.rows(BEFORE, (X*)staged, counts, real, (u8*)staged + POOL);
  __syncthreads();
#elif STAGED
  X* const xs = (X*)staged;
  {
    const u32 pieces = (u32)((u64)real * DEPTH * sizeof(X) / 16);
    const Bytes16* from = (const Bytes16*)x;
    for (u32 at = threadIdx.x; at < pieces; at += 256 * 4) {
      Bytes16 piece[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) if (at + i * 256 < pieces) piece[i] = from[at + i * 256];
#pragma unroll
      for (int i = 0; i < 4; ++i) if (at + i * 256 < pieces) staged[at + i * 256] = piece[i];
    }
    __syncthreads();
  }
#else
  const X* const xs = x;
#endif
  Pack<X, E> kept[KEPT ? J : 1];
  if (KEPT) {
#pragma unroll
    for (int j = 0; j < J; ++j) {
      const u32 chunk = j * ACROSS + part * 32 + lane;
      // What is past the end meets weights of 0, and must not be NaN.
      load<(E * sizeof(X) < 16 ? E * sizeof(X) : 16)>(kept[KEPT ? j : 0], xs + (WHOLE || chunk < CHUNKS ? chunk : 0) * E);
      if (!WHOLE && chunk >= CHUNKS) kept[KEPT ? j : 0] = Pack<X, E>{};
    }
  }
  for (u32 flip = 0; unit < UNITS; unit += step, flip ^= 1) {
    float even[R][M], odd[R][M];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < M; ++m) even[r][m] = odd[r][m] = 0.0f;
    for (u32 round = 0; round < ROUNDS; ++round) {
      const bool last = round + 1 == ROUNDS, more = !last || unit + step < UNITS;
#pragma unroll
      for (int j = 0; j < J; ++j) {
        const u32 chunk = (round * J + j) * ACROSS + part * 32 + lane;
#pragma unroll
        for (int m = 0; m < M; ++m) {
          if (KEPT || ((WHOLE || chunk < CHUNKS) && m < real)) {
            Pack<X, E> values;
            if (KEPT) {
              keep_narrow(kept[KEPT ? j : 0]);
              values = kept[KEPT ? j : 0];
            } else {
              load<(E * sizeof(X) < 16 ? E * sizeof(X) : 16)>(values, xs + (u64)m * DEPTH + chunk * E);
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
              const W* weight = (const W*)&held[r][j];
#pragma unroll
              for (int i = 0; i < E; i += 2) {
                even[r][m] = fmaf(widen(weight[i]), widen(values.at[i]), even[r][m]);
                odd[r][m] = fmaf(widen(weight[i + 1]), widen(values.at[i + 1]), odd[r][m]);
              }
            }
          }
        }
        if (more) fetch(last ? unit + step : unit, last ? 0 : round + 1, j);
      }
    }
    float sums[SUMS];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < M; ++m) sums[r * M + m] = even[r][m] + odd[r][m];
    float sum = lane_sum(sums);
    if (SPLIT > 1) {
      if (lane % SPREAD == 0) shares[flip][own][warp] = sum;
      meet<ACROSS>(group);
      if (part == 0) {
        const float* share = &shares[flip][own][warp];
        sum = share[0];
#pragma unroll
        for (int i = 1; i < SPLIT; ++i) sum += share[i];
      }
    }
    const u32 column = unit * R + own_row;
    if (is_own(unit)) {
#ifdef AFTER
      Y rounded;
      narrow(rounded, sum);
      after.store(AFTER, counts, own_m, column, widen(rounded));
#else
      narrow(y[(u64)own_m * COLUMNS + column], sum);
#endif
    }
#ifdef AFTER
    if (unit + step < UNITS && is_own(unit + step)) after.ahead(AFTER, own_m, column + step * R);
#endif
  }
}

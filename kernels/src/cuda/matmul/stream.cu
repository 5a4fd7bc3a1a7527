// y[m, n] = sum over k of x[m, k] * w[n, k] for at most M rows: every weight is read once, 16
// bytes at a time, R * J loads of a lane in flight; the first of them are issued before the
// wait. A warp takes R neighbouring rows of w. A sum runs over a lane's chunks in order (even and
// odd elements apart) and then over the lanes: its order is that of k alone, whatever M is.
enum { E = 16 / sizeof(W), WARPS = 8 };

extern "C" __global__ void __launch_bounds__(256, 2) matmul(
    const X* x, const W* w, Y* y, const i32* counts,
    u32 rows, u32 columns, u32 depth, u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 chunks = depth / E, rounds = (chunks + 32 * J - 1) / (32 * J);
  const u32 units = (columns + R - 1) / R, step = gridDim.x * WARPS;
  // Counted block-fastest, so that every multiprocessor gets the same share.
  u32 unit = warp * gridDim.x + blockIdx.x;
  Bytes16 held[R][J];
  auto fetch = [&](u32 unit, u32 round) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      u32 row = unit * R + r;
      const W* from = w + (u64)(row < columns ? row : columns - 1) * depth;
#pragma unroll
      for (int j = 0; j < J; ++j) {
        const u32 chunk = (round * J + j) * 32 + lane;
        held[r][j] = chunk < chunks ? load_weight(from + (u64)chunk * E) : Bytes16{0, 0, 0, 0};
      }
    }
  };
  if (unit < units) fetch(unit, 0);
#ifdef BEFORE
  Before before;
  before.ahead(BEFORE, (X*)staged);
#endif
  // No kernel of a step writes its counts.
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = real < rows ? real : rows;
  PW_WAIT();
  // The one element of a unit that this lane finishes.
  const u32 own_row = lane / M, own_m = lane % M;
  auto is_own = [&](u32 unit) { return own_row < R && own_m < real && unit * R + own_row < columns; };
#ifdef AFTER
  After after;
  if (unit < units && is_own(unit)) after.ahead(AFTER, own_m, unit * R + own_row);
#endif
#ifdef BEFORE
  const X* const xs = (const X*)staged;
  before.rows(BEFORE, (X*)staged, counts, real, (u8*)staged + POOL);
  __syncthreads();
#elif STAGED
  X* const xs = (X*)staged;
  {
    const u32 pieces = (u32)((u64)real * depth * sizeof(X) / 16);
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
  for (; unit < units; unit += step) {
    float even[R][M], odd[R][M];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < M; ++m) even[r][m] = odd[r][m] = 0.0f;
    for (u32 round = 0; round < rounds; ++round) {
#pragma unroll
      for (int j = 0; j < J; ++j) {
        const u32 chunk = (round * J + j) * 32 + lane;
        if (chunk < chunks) {
#pragma unroll
          for (int m = 0; m < M; ++m) {
            if (m < real) {
              Pack<X, E> part;
              load<(E * sizeof(X) < 16 ? E * sizeof(X) : 16)>(part, xs + (u64)m * depth + chunk * E);
#pragma unroll
              for (int r = 0; r < R; ++r) {
                const W* weight = (const W*)&held[r][j];
#pragma unroll
                for (int i = 0; i < E; i += 2) {
                  even[r][m] = fmaf(widen(weight[i]), widen(part.at[i]), even[r][m]);
                  odd[r][m] = fmaf(widen(weight[i + 1]), widen(part.at[i + 1]), odd[r][m]);
                }
              }
            }
          }
        }
      }
      if (round + 1 < rounds) fetch(unit, round + 1);
      else if (unit + step < units) fetch(unit + step, 0);
    }
    float own = 0.0f;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float sum = lanes<Sum, 32>(even[r][m] + odd[r][m]);
        if (own_row == r && own_m == m) own = sum;
      }
    const u32 column = unit * R + own_row;
    if (is_own(unit)) {
#ifdef AFTER
      Y rounded;
      narrow(rounded, own);
      after.store(AFTER, counts, own_m, column, widen(rounded));
#else
      narrow(y[(u64)own_m * columns + column], own);
#endif
    }
#ifdef AFTER
    if (unit + step < units && is_own(unit + step)) after.ahead(AFTER, own_m, column + step * R);
#endif
  }
}

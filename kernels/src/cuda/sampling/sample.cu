// The best of a part of each row: grid (PARTS, rows).
extern "C" __global__ void __launch_bounds__(256) sample_parts(
    const float* logits, Best* parts, const i32* counts, u32 rows, u32 vocabulary, u32 symbol) {
  PW_LAUNCH_DEPENDENTS();
  __shared__ Best exchange[8];
  PW_WAIT();
  const u32 row = blockIdx.y;
  if (row >= rows || (i32)row >= counts[symbol]) return;
  const Best best = best_of_part(logits + (u64)row * vocabulary, Same{}, vocabulary, exchange);
  if (threadIdx.x == 0) parts[row * PARTS + blockIdx.x] = best;
}

// The token of each row: grid (rows).
extern "C" __global__ void __launch_bounds__(1024) sample(
    const float* logits, const float* temperature, const i32* top_k, const float* top_p,
    const i64* seed, const i32* position, i32* out, const Best* parts, const i32* counts,
    u32 rows, u32 vocabulary, u32 symbol) {
  PW_LAUNCH_DEPENDENTS();
  __shared__ u64 exchange[32], bins[256], found[2];
  PW_WAIT();
  const u32 at = blockIdx.x;
  if (at >= rows || (i32)at >= counts[symbol]) return;
  Best best = {-INF_F, -1};
  for (u32 i = 0; i < PARTS; ++i) best = better(best, parts[at * PARTS + i]);
  Row<Same> row = {logits + (u64)at * vocabulary, Same{}, vocabulary, temperature[at], 0.0f, 0};
  choose(row, best, top_k[at], top_p[at], seed[at], position[at], out + at, exchange, bins, found);
}

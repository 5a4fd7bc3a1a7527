// A token for each row of logits: the steps of the CPU's sampler, one correctly rounded operation
// each, and integer sums, so that the choice is the same to the bit.

// The larger logit; the lower index among equals.
struct Best { float value; i32 index; };
DEVICE Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && (u32)b.index < (u32)a.index) ? b : a;
}
DEVICE Best best_of_block(Best best, Best* exchange) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    Best other = {from_lane(best.value, mask), from_lane(best.index, mask)};
    best = better(best, other);
  }
  if (threadIdx.x % 32 == 0) exchange[threadIdx.x / 32] = best;
  __syncthreads();
  best = exchange[0];
  for (u32 i = 1; i < blockDim.x / 32; ++i) best = better(best, exchange[i]);
  __syncthreads();
  return best;
}

// Logits as they are. What else may be asked of a row is given in its place.
struct Same {
  DEVICE float operator()(u32, float logit) const { return logit; }
};

// The best of the part of a row that the block has; it has 256 threads. A NaN counts as +inf, so that
// what is no number wins over all that is one.
template <class Of> DEVICE Best best_of_part(
    const float* from, const Of& of, u32 vocabulary, Best* exchange) {
  const u32 each = vocabulary / PARTS + 1;
  const u32 first = blockIdx.x * each;
  const u32 last = first + each < vocabulary ? first + each : vocabulary;
  Best best = {-INF_F, -1};
  for (u32 i = first + threadIdx.x; i < last; i += 256 * 4) {
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 at = i + j * 256;
      x[j] = at < last ? fminf(of(at, from[at]), INF_F) : -INF_F;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) best = better(best, Best{x[j], (i32)(i + j * 256)});
  }
  return best_of_block(best, exchange);
}

template <class Of> struct Row {
  const float* logits;
  Of of;
  u32 vocabulary;
  float temperature, top;
  // Weights below it count as none.
  u64 least;
  DEVICE float z(u32 i) const {
    float z = of(i, logits[i]) / temperature;
    return z != z ? -INF_F : z;
  }
  // 2^40 e^(z - top), its integer part.
  DEVICE u64 weight(float z) const {
    const float difference = z - top;
    if (!(difference >= LOWEST)) return 0;
    const float n = floorf(fmaf(difference, LOG2_E, 0.5f));
    const float r = fmaf(n, -LN2_LOW, fmaf(n, -LN2_HIGH, difference));
    float p = P5;
    p = fmaf(p, r, P4);
    p = fmaf(p, r, P3);
    p = fmaf(p, r, P2);
    p = fmaf(p, r, P1);
    p = fmaf(p, r, P0);
    const float e = fmaf(p, r * r, r) + 1.0f;
    const u64 weight = (u64)(i64)(e * __uint_as_float((u32)((i32)n + 40 + 127) << 23));
    return weight < least ? 0 : weight;
  }
  // Ascends as z descends, then as the index ascends.
  DEVICE u64 key(float z, u32 i) const {
    const u32 bits = __float_as_uint(z + 0.0f);
    const u32 ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)(~ascending) << 32 | i;
  }
};

DEVICE u64 sum_of_block(u64 x, u64* exchange) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += from_lane(x, mask);
  if (threadIdx.x % 32 == 0) exchange[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (u32 i = 0; i < blockDim.x / 32; ++i) x += exchange[i];
  __syncthreads();
  return x;
}

// The first key, in ascending order and among those up to `last`, at which the running sum (of
// weights, or of ones) reaches `target`: digit by digit from the top.
template <class Of> DEVICE u64 key_at(
    const Row<Of>& row, bool weights, u64 last, u64 target, u64* bins, u64* found) {
  u64 prefix = 0;
#pragma unroll 1
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (shift == 24) continue;  // indices are below 2^24
    const u64 mask = shift == 56 ? 0 : ~0ull << (shift + 8);
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.vocabulary; i += blockDim.x) {
      const float z = row.z(i);
      const u64 key = row.key(z, i);
      if (key <= last && (key & mask) == (prefix & mask)) {
        const u64 amount = weights ? row.weight(z) : 1;
        if (amount != 0) atomicAdd(&bins[key >> shift & 255], amount);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      u32 digit = 0;
      while (digit < 255 && bins[digit] < target) target -= bins[digit++];
      found[0] = digit;
      found[1] = target;
    }
    __syncthreads();
    prefix |= found[0] << shift;
    target = found[1];
    __syncthreads();
  }
  return prefix;
}

DEVICE u64 uniform(i64 seed, i32 position) {
  u32 a = (u32)position, b = 0, c = 0, d = 0, k0 = (u32)seed, k1 = (u32)((u64)seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 left = (u64)a * 0xd2511f53u, right = (u64)c * 0xcd9e8d57u;
    a = (u32)(right >> 32) ^ b ^ k0;
    b = (u32)right;
    c = (u32)(left >> 32) ^ d ^ k1;
    d = (u32)left;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return (u64)b << 32 | a;
}

// Writes the token of a row, whose best is `best`. Not all threads get past it together.
template <class Of> DEVICE void choose(
    Row<Of>& row, Best best, i32 top_k, float share, i64 seed, i32 position, i32* out,
    u64* exchange, u64* bins, u64* found) {
  const u32 vocabulary = row.vocabulary;
  const bool finite = fabsf(best.value) < INF_F;
  row.top = best.value / row.temperature;
  if (!finite || !(row.temperature > 0.0f) || !(fabsf(row.top) < INF_F)) {
    if (threadIdx.x == 0) *out = finite ? best.index : NO_ID;
    return;
  }
  u64 last = ~0ull;
  if (top_k > 0 && (u32)top_k < vocabulary) {
    last = key_at(row, false, last, (u64)top_k, bins, found);
  }
  if (share < 1.0f) {
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < vocabulary; i += blockDim.x) {
      const float z = row.z(i);
      if (row.key(z, i) <= last) sum += row.weight(z);
    }
    sum = sum_of_block(sum, exchange);
    const u64 part = (u64)((double)(share > 0.0f ? share : 0.0f) * 4294967296.0);
    const u64 limit = __umul64hi(sum, part) << 32 | sum * part >> 32;
    last = key_at(row, true, last, limit > 1 ? limit : 1, bins, found);
  }
  // The draw: each warp sums a range of indices, and the one that the target falls into looks.
  const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 each = vocabulary / warps + 1;
  const u32 first = warp * each < vocabulary ? warp * each : vocabulary;
  const u32 end = first + each < vocabulary ? first + each : vocabulary;
  auto kept = [&](u32 i) -> u64 {
    if (i >= end) return 0;
    const float z = row.z(i);
    return row.key(z, i) <= last ? row.weight(z) : 0;
  };
  u64 mine = 0;
  for (u32 i = first + lane; i < end; i += 32) mine += kept(i);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) mine += from_lane(mine, mask);
  if (lane == 0) exchange[warp] = mine;
  __syncthreads();
  u64 before = 0, total = 0;
  for (u32 i = 0; i < warps; ++i) {
    if (i < warp) before += exchange[i];
    total += exchange[i];
  }
  const u64 target = __umul64hi(total, uniform(seed, position));
  if (target < before || target >= before + mine) return;
  for (u32 i = first; i < end; i += 32) {
    u64 running = kept(i + lane);
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const u64 lower = __shfl_up_sync(0xffffffffu, running, by);
      if (lane >= (u32)by) running += lower;
    }
    running += before;
    const u32 over = __ballot_sync(0xffffffffu, running > target);
    if (over != 0) {
      if (lane == 0) *out = (i32)(i + __ffs((int)over) - 1);
      return;
    }
    before = __shfl_sync(0xffffffffu, running, 31);
  }
}

// Sampling with all that a row may ask for. What a row does not ask for is not looked at.

// Of the words of a row of controls.
#define MASKED 1
#define WEIGHED 2
#define TALLIED 4
#define LIKELIHOODS 8
#define GIVEN 16
// Of a cell: how often its id was generated, and whether it has a bias or is of the prompt.
#define TIMES 0x3fff
#define BIASED 0x4000
#define OF_PROMPT 0x8000

// Logits with biases, penalties and mask.
struct Adjusted {
  const u32* mask;
  const u16* cells;
  const i32* biased;
  float presence, frequency, repetition;

  DEVICE Adjusted(const i32* controls, const float* penalties, const i32* masks, const i32* tokens,
                  u32 vocabulary)
      : mask(nullptr), cells(nullptr), biased(nullptr), presence(penalties[1]),
        frequency(penalties[2]), repetition(penalties[3]) {
    if (controls[0] & MASKED) mask = (const u32*)masks + (u64)controls[2] * ((vocabulary + 31) / 32);
    if (controls[0] & WEIGHED) {
      const u32 words = (vocabulary + 1) / 2;
      cells = (const u16*)(tokens + (u64)controls[1] * (words + 2 * BIASES));
      biased = (const i32*)cells + words;
    }
  }
  DEVICE float bias(u32 id) const {
    u32 from = 0, to = BIASES - 1;
    while (from < to) {
      const u32 middle = (from + to) / 2;
      if ((u32)biased[middle] < id) from = middle + 1; else to = middle;
    }
    return __int_as_float(biased[BIASES + from]);
  }
  DEVICE float operator()(u32 id, float logit) const {
    // What is no number hides behind no mask.
    if (mask && !(mask[id / 32] >> (id % 32) & 1) && logit < INF_F) return -INF_F;
    const u32 cell = cells ? cells[id] : 0;
    if (cell == 0) return logit;
    if (cell & BIASED) logit = logit + bias(id);
    const u32 times = cell & TIMES;
    if (cell & (OF_PROMPT | TIMES)) logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (times != 0) {
      const float product = frequency * (float)times;
      logit = logit - product;
      logit = logit - presence;
    }
    return logit;
  }
};

// The best of a part of each row: grid (PARTS, rows).
extern "C" __global__ void __launch_bounds__(256) controlled_parts(
    const float* logits, const i32* controls, const float* penalties, const i32* masks,
    const i32* tokens, Best* parts, const i32* counts, u32 rows, u32 vocabulary, u32 symbol) {
  PW_LAUNCH_DEPENDENTS();
  __shared__ Best exchange[8];
  PW_WAIT();
  const u32 row = blockIdx.y;
  if (row >= rows || (i32)row >= counts[symbol]) return;
  const float* from = logits + (u64)row * vocabulary;
  const i32* asked = controls + 4 * row;
  Best best;
  if (asked[0] & (MASKED | WEIGHED) && !(asked[0] & GIVEN)) {
    const Adjusted of(asked, penalties + 4 * row, masks, tokens, vocabulary);
    best = best_of_part(from, of, vocabulary, exchange);
  } else {
    best = best_of_part(from, Same{}, vocabulary, exchange);
  }
  if (threadIdx.x == 0) parts[row * PARTS + blockIdx.x] = best;
}

// What log-probabilities are made from: the largest logit, the sum of weights, the token's logit and
// place, how many of the likeliest follow, and these with their logits.
DEVICE void tell(const float* logits, u32 vocabulary, u32 id, u32 wanted, i32* details, Best* bests,
                 u64* exchange, u64* bins, u64* found) {
  Best best = {-INF_F, -1};
  for (u32 i = threadIdx.x; i < vocabulary; i += blockDim.x) {
    best = better(best, Best{logits[i], (i32)i});
  }
  best = best_of_block(best, bests);
  Row<Same> row = {logits, Same{}, vocabulary, 1.0f, best.value, 0};
  const u64 own = row.key(row.z(id), id) >> 32;
  u64 sum = 0, larger = 0;
  for (u32 i = threadIdx.x; i < vocabulary; i += blockDim.x) sum += row.weight(row.z(i));
  for (u32 i = threadIdx.x; i < vocabulary; i += blockDim.x) {
    larger += row.key(row.z(i), i) >> 32 < own;
  }
  sum = sum_of_block(sum, exchange);
  larger = sum_of_block(larger, exchange);
  wanted = wanted < vocabulary ? wanted : vocabulary;
  u64 last = 0;
  if (wanted > 0) last = key_at(row, false, ~0ull, (u64)wanted, bins, found);
  if (threadIdx.x == 0) found[0] = 0;
  __syncthreads();
  if (wanted > 0) {
    for (u32 i = threadIdx.x; i < vocabulary; i += blockDim.x) {
      const u64 key = row.key(row.z(i), i);
      if (key <= last) bins[atomicAdd(&found[0], (u64)1)] = key;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  details[0] = (i32)__float_as_uint(best.value);
  details[1] = (i32)(u32)sum;
  details[2] = (i32)(u32)(sum >> 32);
  details[3] = (i32)__float_as_uint(logits[id]);
  details[4] = (i32)larger + 1;
  details[5] = (i32)wanted;
  for (u32 i = 0; i < wanted; ++i) {
    u32 least = i;
    for (u32 j = i + 1; j < wanted; ++j) least = bins[j] < bins[least] ? j : least;
    const u64 key = bins[least];
    bins[least] = bins[i];
    details[6 + 2 * i] = (i32)(u32)key;
    details[7 + 2 * i] = (i32)__float_as_uint(logits[(u32)key]);
  }
}

// The token of each row: grid (rows).
extern "C" __global__ void __launch_bounds__(1024) controlled_sample(
    const float* logits, const float* temperature, const i32* top_k, const float* top_p,
    const i64* seed, const i32* position, const i32* controls, const float* penalties,
    const i32* masks, i32* tokens, i32* out, i32* details, const Best* parts, const i32* counts,
    u32 rows, u32 vocabulary, u32 symbol) {
  PW_LAUNCH_DEPENDENTS();
  __shared__ u64 exchange[32], bins[256], found[2];
  __shared__ Best bests[32];
  PW_WAIT();
  const u32 at = blockIdx.x;
  if (at >= rows || (i32)at >= counts[symbol]) return;
  Best best = {-INF_F, -1};
  for (u32 i = 0; i < PARTS; ++i) best = better(best, parts[at * PARTS + i]);
  const float* from = logits + (u64)at * vocabulary;
  const i32* asked = controls + 4 * at;
  const i32 flags = asked[0];
  const float share = penalties[4 * at];
  if (threadIdx.x < DETAILS) details[(u64)at * DETAILS + threadIdx.x] = 0;
  const double most = 1099511627776.0;
  const u64 least = share > 0.0f ? (u64)(i64)((double)(share < 1.0f ? share : 1.0f) * most) : 0;
  if (flags & GIVEN) {
    if (threadIdx.x == 0) out[at] = fabsf(best.value) < INF_F ? asked[2] : NO_ID;
  } else if (flags & (MASKED | WEIGHED)) {
    const Adjusted of(asked, penalties + 4 * at, masks, tokens, vocabulary);
    Row<Adjusted> row = {from, of, vocabulary, temperature[at], 0.0f, least};
    choose(row, best, top_k[at], top_p[at], seed[at], position[at], out + at, exchange, bins, found);
  } else {
    Row<Same> row = {from, Same{}, vocabulary, temperature[at], 0.0f, least};
    choose(row, best, top_k[at], top_p[at], seed[at], position[at], out + at, exchange, bins, found);
  }
  if ((flags & (TALLIED | LIKELIHOODS)) == 0) return;
  __syncthreads();
  if (out[at] < 0) return;
  const u32 id = (u32)out[at];
  if ((flags & TALLIED) && threadIdx.x == 0) {
    u16* cell = (u16*)(tokens + (u64)asked[1] * ((vocabulary + 1) / 2 + 2 * BIASES)) + id;
    if ((*cell & TIMES) < TIMES) *cell = (u16)(*cell + 1);
  }
  if (flags & LIKELIHOODS) {
    i32* to = details + (u64)at * DETAILS;
    tell(from, vocabulary, id, (u32)asked[3], to, bests, exchange, bins, found);
  }
}

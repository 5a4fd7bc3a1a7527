// Partial results of `splits` ranges of keys, for each row and head: the largest score, the sum of
// the shares, then what they weigh, in floats. FEW is the most tokens of a sequence that these
// kernels take where they leave longer ones to another, 0 where they take all.
DEVICE u64 place_of(u32 sequence, u32 start, u32 token) {
  return FEW ? (u64)sequence * FEW + token : (u64)start + token;
}

// The ranges of each row and head become one: grid (places * heads), a warp each, a lane for each
// of up to 32 ranges.
extern "C" __global__ void __launch_bounds__(128) attention_combine(
    const float* partial, const i32* starts, const i32* query_lengths, Q* out, const i32* counts,
    u32 rows, u32 sequences, u32 row_symbol, u32 sequence_symbol, u32 splits) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 lane = threadIdx.x % 32, at = blockIdx.x * 4 + threadIdx.x / 32;
  u32 row = at / HEADS;
  if (FEW) {
    const u32 sequence = row / (FEW ? FEW : 1), token = row % (FEW ? FEW : 1);
    if (sequence >= sequences || (i32)sequence >= counts[sequence_symbol]) return;
    const i32 n = query_lengths[sequence], start = starts[sequence];
    if (n > FEW || (i32)token >= n || start < 0) return;
    row = start + token;
  }
  if (row >= rows || (i32)row >= counts[row_symbol]) return;
  const float* from = partial + (u64)at * splits * (VALUE_DIM + 2);
  const float m = lane < splits ? from[lane * (VALUE_DIM + 2)] : -INF_F;
  const float l = lane < splits ? from[lane * (VALUE_DIM + 2) + 1] : 0.0f;
  const float top = lanes<Largest, 32>(m);
  const float share = m == -INF_F ? 0.0f : exp2f(m - top);
  const float sum = lanes<Sum, 32>(share == 0.0f ? 0.0f : l * share);
  // Keys are seen from the first on: later ranges may hold nothing.
  const u32 some = __ballot_sync(0xffffffffu, m != -INF_F), ranges = some != 0 ? 32 - __clz((int)some) : 0;
  float x[(VALUE_DIM + 31) / 32];
#pragma unroll
  for (int i = 0; i < (VALUE_DIM + 31) / 32; ++i) x[i] = 0.0f;
#pragma unroll 4
  for (u32 s = 0; s < ranges; ++s) {
    const float of_it = __shfl_sync(0xffffffffu, share, s);
#pragma unroll
    for (int i = 0; i < (VALUE_DIM + 31) / 32; ++i) {
      const u32 column = lane + i * 32;
      const float part = VALUE_DIM % 32 == 0 || column < VALUE_DIM ? from[s * (VALUE_DIM + 2) + 2 + column] : 0.0f;
      x[i] = of_it == 0.0f ? x[i] : fmaf(part, of_it, x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < (VALUE_DIM + 31) / 32; ++i) {
    const u32 column = lane + i * 32;
    if (VALUE_DIM % 32 == 0 || column < VALUE_DIM) narrow(out[((u64)row * HEADS + at % HEADS) * VALUE_DIM + column], x[i] / sum);
  }
}

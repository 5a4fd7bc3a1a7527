// Partial results of `splits` ranges of keys, for each row and head: what the shares weigh, the
// largest score and the sum of the shares, in PARTIAL floats, so that they start on 16 bytes. FEW
// is the most tokens of a sequence that these kernels take where they leave longer ones to
// another, 0 where they take all.
enum {
  PARTIAL = (VALUE_DIM + 5) / 4 * 4,
  COLUMNS = VALUE_DIM % 4 == 0 ? 4 : 1,
  PARTS = (VALUE_DIM + 8 * COLUMNS - 1) / (8 * COLUMNS)
};
DEVICE u64 place_of(u32 sequence, u32 start, u32 token) {
  return FEW ? (u64)sequence * FEW + token : (u64)start + token;
}

// The ranges of each row and head become one: grid (places * heads * PARTS), a warp each, of which
// eight lanes have COLUMNS neighbouring columns of every fourth range, so that all ranges are read
// at once. A lane has the largest score and the sum of one of up to 32 ranges.
extern "C" __global__ void __launch_bounds__(128) attention_combine(
    const float* partial, const i32* starts, const i32* query_lengths, Q* out, const i32* counts,
    u32 rows, u32 sequences, u32 row_symbol, u32 sequence_symbol, u32 splits) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 lane = threadIdx.x % 32, unit = blockIdx.x * 4 + threadIdx.x / 32, at = unit / PARTS;
  const u32 column = (unit % PARTS * 8 + lane % 8) * COLUMNS;
  u32 row = at / HEADS;
  if (FEW) {
    const u32 sequence = row / (FEW ? FEW : 1), token = row % (FEW ? FEW : 1);
    if (sequence >= sequences || (i32)sequence >= counts[sequence_symbol]) return;
    const i32 n = query_lengths[sequence], start = starts[sequence];
    if (n > FEW || (i32)token >= n || start < 0) return;
    row = start + token;
  }
  if (row >= rows) return;
  const i32 real = counts[row_symbol];
  const float* from = partial + (u64)at * splits * PARTIAL;
  const float m = lane < splits ? from[lane * PARTIAL + VALUE_DIM] : -INF_F;
  const float l = lane < splits ? from[lane * PARTIAL + VALUE_DIM + 1] : 0.0f;
  const float top = lanes<Largest, 32>(m);
  const float share = m == -INF_F ? 0.0f : exp2f(m - top);
  const float scale = 1.0f / lanes<Sum, 32>(share == 0.0f ? 0.0f : l * share);
  // Keys are seen from the first on: later ranges may hold nothing.
  const u32 some = __ballot_sync(0xffffffffu, m != -INF_F), ranges = some != 0 ? 32 - __clz((int)some) : 0;
  float x[COLUMNS];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) x[c] = 0.0f;
  for (u32 first = 0; first < ranges; first += 16) {
    const u32 s = first + lane / 8;
    Pack<float, COLUMNS> part[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Past the last range or column, what is there is read again: no load waits on a branch.
      const u32 of = s + j * 4 < ranges ? s + j * 4 : ranges - 1;
      load<4 * COLUMNS>(part[j], from + of * PARTIAL + (column < VALUE_DIM ? column : 0));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float of_it = __shfl_sync(0xffffffffu, share, (s + j * 4) % 32);
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) x[c] = fmaf(of_it == 0.0f ? 0.0f : part[j].at[c], of_it, x[c]);
    }
  }
  Pack<Q, COLUMNS> result;
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    x[c] += from_lane(x[c], 8);
    x[c] += from_lane(x[c], 16);
    narrow(result.at[c], x[c] * scale);
  }
  // Padding is combined too, from whatever its places hold, but not written: to ask first takes longer.
  if (lane < 8 && column < VALUE_DIM && (i32)row < real) store<sizeof(Q) * COLUMNS>(out + ((u64)row * HEADS + at % HEADS) * VALUE_DIM + column, result);
}

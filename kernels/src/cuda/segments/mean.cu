// The mean over the rows of each segment: a thread takes a column, and adds from the first row on.
extern "C" __global__ void __launch_bounds__(128) segment_mean(
    const X* x, const i32* starts, const i32* lengths, X* out, const i32* counts, u32 rows, u32 segments,
    u32 segment_symbol) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 segment = blockIdx.x, column = blockIdx.y * 128 + threadIdx.x;
  if (segment >= segments || segment >= (u32)counts[segment_symbol] || column >= WIDTH) return;
  const i32 start = starts[segment], length = lengths[segment];
  const u32 first = start < 0 ? rows : (u32)start, held = first < rows ? rows - first : 0;
  const u32 there = length < 0 ? 0 : (u32)length < held ? (u32)length : held;
  float sum = 0.0f;
#pragma unroll 8
  for (u32 i = 0; i < there; ++i) sum = op_add(sum, widen(x[(u64)(first + i) * WIDTH + column]));
  narrow(out[(u64)segment * WIDTH + column], there == 0 ? 0.0f : sum * (1.0f / (float)there));
}

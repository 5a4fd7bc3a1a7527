// A sequence of the step whose rows and slot are there.
struct Sequence {
  u32 slot, start, length;
};

static __device__ bool sequence_of(Sequence &of, u32 i, const i32 *slots, const i32 *starts, const i32 *lengths,
                                   u32 rows, u32 slots_there) {
  const i32 slot = slots[i], start = starts[i], length = lengths[i];
  if (slot < 0 || (u32)slot >= slots_there || start < 0 || length < 0 || (u32)start >= rows) return false;
  const u32 held = rows - (u32)start;
  of = {(u32)slot, (u32)start, (u32)length < held ? (u32)length : held};
  return true;
}

// Column of row i of a sequence, from the first that its slot holds.
static __device__ X row_of(const Sequence &of, const X *kept, const X *x, u32 i, u32 column) {
  return i < KEPT ? kept[i] : x[(u64)(of.start + i - KEPT) * WIDTH + column];
}

// A block takes a row, a thread a column of it. The sequence of a row is the last that begins at it or before.
extern "C" __global__ void __launch_bounds__(COLUMNS) causal_window(
    const X *x, X *state, const i32 *slots, const i32 *starts, const i32 *lengths, X *out, const i32 *counts,
    u32 rows, u32 slots_there, u32 sequences, u32 sequence_symbol) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 row = blockIdx.x, column = blockIdx.y * COLUMNS + threadIdx.x;
  const u32 counted = (u32)counts[sequence_symbol], there = counted < sequences ? counted : sequences;
  if (row >= rows || column >= WIDTH) return;
  u32 low = 0, high = there;
  while (low < high) {
    const u32 middle = (low + high) / 2;
    if (starts[middle] <= (i32)row) low = middle + 1;
    else high = middle;
  }
  Sequence of;
  if (low == 0 || !sequence_of(of, low - 1, slots, starts, lengths, rows, slots_there)) return;
  const u32 own = row - of.start;
  if (own >= of.length) return;
  const X *before = state + ((u64)of.slot * WIDTH + column) * KEPT;
  X *window = out + ((u64)row * WIDTH + column) * (KEPT + 1);
#pragma unroll
  for (u32 j = 0; j <= KEPT; ++j) window[j] = row_of(of, before, x, own + j, column);
}

// A block takes a sequence, a thread a column of its slot: its own last rows, which no other thread reads.
extern "C" __global__ void __launch_bounds__(COLUMNS) causal_window_slots(
    const X *x, X *state, const i32 *slots, const i32 *starts, const i32 *lengths, X *out, const i32 *counts,
    u32 rows, u32 slots_there, u32 sequences, u32 sequence_symbol) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 sequence = blockIdx.x, column = blockIdx.y * COLUMNS + threadIdx.x;
  if (sequence >= sequences || sequence >= (u32)counts[sequence_symbol] || column >= WIDTH) return;
  Sequence of;
  if (!sequence_of(of, sequence, slots, starts, lengths, rows, slots_there)) return;
  X *kept = state + ((u64)of.slot * WIDTH + column) * KEPT;
  // Each is read from behind where it is written, so that nothing is lost.
#pragma unroll
  for (u32 j = 0; j < KEPT; ++j) kept[j] = row_of(of, kept, x, of.length + j, column);
}

// w[n, k] = (code - zero)[n, k] * scale, rounded, where scale and zero are those of the block of n and k:
// what kernels of tiles multiply. A thread makes eight neighbours.
extern "C" __global__ void __launch_bounds__(256) widen_codes(
    const u8* codes, const S* scales,
#if HAS_ZEROS
    const u8* zeros,
#endif
    X* w, u32 columns, u32 depth, u32 block_rows, u32 block_columns) {
  PW_LAUNCH_DEPENDENTS();
  PW_WAIT();
  const u32 eight = blockIdx.x * 256 + threadIdx.x, row = eight / (depth / 8), k = eight % (depth / 8) * 8;
  if (row >= columns) return;
  const u32 groups = blocks_for(depth, block_columns), of_row = row / block_rows;
  Pack<u8, CODE_BITS> held;
  load<CODE_BITS>(held, codes + (u64)eight * CODE_BITS);
  const S* const of_rows = scales + (u64)of_row * groups;
  float made[8];
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    const u32 group = (k + i) / block_columns;
    float number = number_of(code_at(held.at, i));
#if HAS_ZEROS
    number -= number_of(code_at(zeros + of_row * (((u64)groups * CODE_BITS + 7) / 8), group));
#endif
    made[i] = number * widen(of_rows[group]);
  }
  *(Bytes16*)(w + (u64)eight * 8) = Bytes16{pair_of<X>(made[0], made[1]), pair_of<X>(made[2], made[3]), pair_of<X>(made[4], made[5]), pair_of<X>(made[6], made[7])};
}

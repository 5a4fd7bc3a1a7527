// The number of a code: e4m3, or two's complement of 4 bits.
DEVICE float number_of(u32 bits) {
#if CODE_BITS == 8
  // Exponent and mantissa stand in a float's, whose bias is 120 more.
  return __uint_as_float((bits & 0x80u) << 24 | (bits & 0x7fu) << 20) * 1.3292279957849159e36f;
#else
  return (float)((i32)(bits ^ 8u) - 8);
#endif
}
// The bits of a code of a line, the first of a byte in its lower half.
DEVICE u32 code_at(const u8* line, u32 column) {
  return CODE_BITS == 8 ? line[column] : line[column / 2] >> (column % 2 * 4) & 15u;
}


// Where eight neighbouring columns of a product go: to a result, of which they are these columns.
// Results are parts of a row of the product where they are several.
struct Place {
  u32 part, width, column;
  DEVICE Place(u32 columns, u32 n) : part(0), width(columns), column(n) {
    if (RESULTS > 1) {
      width = columns / RESULTS;
      part = n / width;
      column = n - part * width;
    }
  }
  DEVICE u64 at(u32 row) const { return (u64)row * width + column; }
};

// Eight neighbouring sums of a row as the product has them.
template <class T> DEVICE void round_eight(Pack<T, 8>& to, const float (&sum)[8]) {
  *(Bytes16*)to.at = Bytes16{pair_of<T>(sum[0], sum[1]), pair_of<T>(sum[2], sum[3]), pair_of<T>(sum[4], sum[5]), pair_of<T>(sum[6], sum[7])};
}
DEVICE void round_eight(Pack<float, 8>& to, const float (&sum)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to.at[i] = sum[i];
}

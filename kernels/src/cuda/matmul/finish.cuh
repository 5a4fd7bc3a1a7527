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

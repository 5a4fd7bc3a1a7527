// test.signs in f32: a thread for each column walks down the true rows. Which sequence a row is of comes
// from where sequences start, or, by a rule that is none, from the number of the row alone.
extern "C" __global__ void signs(const float *x, const int *starts, float *y, const int *counts,
                                 unsigned tokens, unsigned sequences, unsigned rule) {
  const unsigned width = blockDim.x;
  const int rows = counts[tokens], all = counts[sequences];
  for (int row = 0; row < rows; ++row) {
    int sequence = 0;
    if (rule == 0) {
      while (sequence < all && starts[sequence] <= row) ++sequence;
    } else {
      const int length = rule == 3 ? rows : rule == 1 || rows / all < 2 ? 1 : 2;
      sequence = row / length + 1;
    }
    const float value = x[row * width + threadIdx.x];
    y[row * width + threadIdx.x] = sequence % 2 ? value : -value;
  }
}

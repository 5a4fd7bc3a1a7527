// test.remember in f32: a thread for each column walks down the rows of each sequence.
extern "C" __global__ void remember(const float *x, float *memory, const int *spans, float *y,
                                    const int *counts, unsigned sequences) {
  const unsigned width = blockDim.x, column = threadIdx.x;
  for (int i = 0; i < counts[sequences]; ++i) {
    const int slot = spans[3 * i], first = spans[3 * i + 1], rows = spans[3 * i + 2];
    float kept = memory[(size_t)slot * width + column];
    for (int row = first; row < first + rows; ++row) {
      kept = 0.5f * kept + x[(size_t)row * width + column];
      y[(size_t)row * width + column] = kept;
    }
    memory[(size_t)slot * width + column] = kept;
  }
}

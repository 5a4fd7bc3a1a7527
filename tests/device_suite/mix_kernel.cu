// test.mix in f32: a thread for each column walks down the true rows; where it is told how many there are
// with padding, sums begin with the last of those.
extern "C" __global__ void mix(const float *x, float *state, const int *slots, float *y,
                               const int *counts, unsigned symbol, unsigned width,
                               unsigned state_rows, float scale, unsigned padded) {
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= width) return;
  const int rows = counts[symbol];
  float sum = padded ? x[(size_t)(padded - 1) * width + column] : 0.0f;
  for (int i = 0; i < rows; ++i) {
    const float value = x[(size_t)i * width + column];
    sum += value;
    const int slot = slots[i];
    const bool kept = slot >= 0 && (unsigned)slot < state_rows;
    float *memory = state + (kept ? (size_t)slot * width + column : 0);
    const float mixed = scale * (value + sum / (float)(i + 1) + (kept ? *memory : 0.0f));
    y[(size_t)i * width + column] = mixed;
    if (kept) *memory = mixed;
  }
}

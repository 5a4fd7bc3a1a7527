// A block for each sequence and head, a thread for each value column. The column of the state
// stays in registers while the thread goes down the rows of the step.
extern "C" __global__ void gated_linear_attention(const float *q, const float *k, const float *v,
                                                  const float *gate, float *state,
                                                  const int *spans, float *out) {
    const int *span = spans + 3 * blockIdx.x;
    const int slot = span[0];
    if (slot < 0) return;
    const unsigned head = blockIdx.y, column = threadIdx.x;
    float *kept = state + ((size_t)slot * HEADS + head) * DIM * DIM + column;
    float s[DIM];
    for (int i = 0; i < DIM; ++i) s[i] = kept[i * DIM];
    for (int row = span[1]; row < span[1] + span[2]; ++row) {
        const size_t at = ((size_t)row * HEADS + head) * DIM;
        float sum = 0.0f;
        for (int i = 0; i < DIM; ++i) {
            s[i] = fmaf(gate[at + i], s[i], k[at + i] * v[at + column]);
            sum = fmaf(q[at + i], s[i], sum);
        }
        out[at + column] = sum;
    }
    for (int i = 0; i < DIM; ++i) kept[i * DIM] = s[i];
}

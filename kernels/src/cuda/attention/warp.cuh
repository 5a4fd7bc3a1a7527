// A warp's 16 rows of queries against keys and values in shared memory, on tensor cores. The softmax goes
// along (Milakov and Gimelshein 2018): of two halves of eight rows, `top` is the largest score so far,
// `sum` and `o` what shares of it and of the values add up to.

// The dot products with N keys, STRIDE chunks apart. Queries are in registers, or STAGED: the warp's from
// `staged` on.
template <int N, int STEPS, int STRIDE, bool STAGED>
DEVICE void score_keys(float (&score)[N / 8][4], const Bytes16* keys, const Bytes16* staged, const u32 (&query)[STAGED ? 1 : STEPS][4], u32 lane) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) score[n][i] = 0.0f;
#pragma unroll
  for (int d = 0; d < STEPS; ++d) {
    u32 a[4];
    if (STAGED) {
      load_matrices(a, staged + lane % 16 * STRIDE + d * 2 + lane / 16);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = query[STAGED ? 0 : d][i];
    }
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      u32 b[4];
      load_matrices(b, keys + (n * 16 + lane / 16 * 8 + lane % 8) * STRIDE + d * 2 + lane / 8 % 2);
      multiply_add<Q>(score[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
      multiply_add<Q>(score[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }
}

#if CAPPED
template <int N> DEVICE void cap_scores(float (&score)[N][4], float scale) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) score[n][i] = share_of_cap(score[n][i] * scale);
}

#endif
// Makes the largest of the scores and of those before the new `top`, and scales by it what was added up.
// What scores are taken less from now on is `from`.
template <int N, int M>
DEVICE void raise_top(const float (&score)[N][4], float scale, float (&top)[2], float (&sum)[2], float (&o)[M][4], float (&from)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = fmaxf(score[0][2 * h], score[0][2 * h + 1]);
#pragma unroll
    for (int n = 1; n < N; ++n) largest = fmaxf(largest, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
    largest = fmaxf(largest, from_lane(largest, 1));
    largest = fmaxf(largest, from_lane(largest, 2));
    const float higher = fmaxf(top[h], largest * scale);
    // A row that has seen nothing yet has no largest score to take from the others.
    from[h] = higher == -INF_F ? 0.0f : higher;
    const float shrink = power_of_two(top[h] - from[h]);
    top[h] = higher;
    sum[h] *= shrink;
#pragma unroll
    for (int n = 0; n < M; ++n) {
      o[n][2 * h] *= shrink;
      o[n][2 * h + 1] *= shrink;
    }
  }
}

// Adds the shares of 16 keys, of which `score` has two rows, and their values, STRIDE chunks apart.
template <int STRIDE, int M>
DEVICE void add_values(const float (*score)[4], float scale, const float (&from)[2], const Bytes16* values, float (&sum)[2], float (&o)[M][4], u32 lane) {
  u32 share[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* pair = &score[i / 2][i % 2 * 2];
    const float x = power_of_two(fmaf(pair[0], scale, -from[i % 2]));
    const float y = power_of_two(fmaf(pair[1], scale, -from[i % 2]));
    sum[i % 2] += x + y;
    share[i] = pair_of<Q>(x, y);
  }
#pragma unroll
  for (int n = 0; n < M / 2; ++n) {
    u32 b[4];
    load_matrices_transposed(b, values + lane % 16 * STRIDE + n * 2 + lane / 16);
    multiply_add<Q>(o[2 * n], share[0], share[1], share[2], share[3], b[0], b[1]);
    multiply_add<Q>(o[2 * n + 1], share[0], share[1], share[2], share[3], b[2], b[3]);
  }
}


// Weights of the elements that x has, as a warp multiplies them: fragments are loaded as they lie.
struct Scales {
  DEVICE Scales(const Problem&, u8*) {}
  // What sums of this half of a tile's columns are multiplied by.
  DEVICE float of_sums(const Problem&, u32, u32, u32, u32) const { return 1.0f; }
};
// Bytes of shared memory that they take.
DEVICE u32 scale_bytes(const Problem&) { return 0; }

DEVICE void multiply_part(float (&sum)[OWN][M / 8][4], const Problem& p, const Part& part, const Scales&) {
  const u32 lane = threadIdx.x % 32, row = lane % 8, eights = part.units * HALVES;
#pragma unroll
  for (int turn = 0; turn < SLICES * 2 / K_WARPS; ++turn) {
    const u32 step = turn * K_WARPS + part.of_k, slice = step / 2, half = step % 2 * 4;
    u32 b[M / 8][4];
#pragma unroll
    for (int n = 0; n < M / 8; ++n)
      load_matrices(b[n], MADE_BYTES ? part.made + (n * 8 + row) * PITCH + (part.chunk * SLICES + slice) * 8 + half + lane / 8
                                     : part.of_x + slice * (M * 8) + n * 64 + row * 8 + (half + lane / 8 ^ row));
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
      const u32 tile = part.of_tiles + own * TILE_WARPS;
      if (tile * 2 < eights) {
        const Bytes16* const of_tile = part.of_w + part.row_at[own] + slice * part.apart[own];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          u32 a[4];
          load_matrices(a, of_tile + (half + k * 2 + lane / 16 ^ row));
#pragma unroll
          for (int n = 0; n < M / 8; ++n) multiply_add<X>(sum[own][n], a[0], a[1], a[2], a[3], b[n][k * 2], b[n][k * 2 + 1]);
        }
      }
    }
  }
}

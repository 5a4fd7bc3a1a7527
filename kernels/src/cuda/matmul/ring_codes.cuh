// Weights that are codes of 8 or 4 bits with scales, as a warp multiplies them: a lane makes pairs of
// elements of X of a word of codes, exactly. In which order k is summed is free, so the pairs are of
// codes that stand half a word apart, and x is loaded in their order. A block has the scales of its share
// of the columns in shared memory, or reads them where they lie if they leave the ring too little.
enum {
  // Elements of k in a step: 32 bytes of each row of w, two words of a lane.
  K_STEP = 256 / W_BITS,
  PAIRS = 16 / W_BITS,
  GROUPED = GROUP > 0,
  // Whether a step has one scale, not one for each of its words' 16 bytes.
  ONE_SCALE = GROUP % K_STEP == 0,
  // Whether all tiles are loaded before the first is multiplied, and without a condition, so that the loads
  // of one go beside the products of another: what is made of tiles that a short share lacks is not looked
  // at. More rows, and the registers of codes of 4 bits, leave no room for it.
  TOGETHER = W_BITS == 8 && M <= 16,
};

// e4m3: exponent and mantissa stand in an element's, whose bias is larger; codes 0 and 2, 1 and 3.
template <class T> struct Wide;
template <> struct Wide<bf16> { enum : u32 { SHIFT = 4, BIAS = 0x7b807b80, WHOLE = 0x43084308 }; };
template <> struct Wide<f16> { enum : u32 { SHIFT = 1, BIAS = 0x5c005c00, WHOLE = 0x64086408 }; };
DEVICE u32 wide_pair(u32 codes) {
  return multiply_pair<X>((codes & 0x7f007f00) >> Wide<X>::SHIFT | codes & 0x80008000, Wide<X>::BIAS);
}
DEVICE void wide(u32 (&to)[2], u32 codes, u32) {
  to[0] = wide_pair(codes << 8);
  to[1] = wide_pair(codes);
}
// Of 4 bits: a code, its sign turned, in the low bits of an element whose unit is 1; codes 0 and 4, 1
// and 5, and so on, less a pair of zero points made the same way.
DEVICE void wide(u32 (&to)[4], u32 codes, u32 zeros) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = subtract_pair<X>(codes >> 4 * i & 0x000f000f ^ Wide<X>::WHOLE, zeros);
}

// Elements of a row of x in the order of a word's pairs.
DEVICE void row_pairs(u32 (&to)[2], const u8* from) {
  const Bytes8 x = *(const Bytes8*)from;
  to[0] = __byte_perm(x.x, x.y, 0x5410);
  to[1] = __byte_perm(x.x, x.y, 0x7632);
}
DEVICE void row_pairs(u32 (&to)[4], const u8* from) {
  const Bytes16 x = *(const Bytes16*)from;
  to[0] = __byte_perm(x.x, x.z, 0x5410);
  to[1] = __byte_perm(x.x, x.z, 0x7632);
  to[2] = __byte_perm(x.y, x.w, 0x5410);
  to[3] = __byte_perm(x.y, x.w, 0x7632);
}

// A code of 4 bits as `wide` takes zero points.
DEVICE u32 zero_of(u32 code) { return (code ^ Wide<X>::WHOLE & 0xffff) * 0x10001u; }

DEVICE u32 groups_of(const Problem& p) { return GROUPED ? blocks_for(p.depth, GROUPED ? GROUP : 1) : 1; }
// Scales between those of one column and the next: so many that neighbours share no banks.
DEVICE u32 pitch_of(const Problem& p) { return groups_of(p) | 1; }
// Bytes of shared memory that they take.
DEVICE u32 scale_bytes(const Problem& p) {
  const u32 each = p.units * (8 * HALVES) * pitch_of(p), bytes = blocks_for(each * (4 + HAS_ZEROS), 1024) * 1024;
  return bytes + 2 * p.slot_bytes <= RING_BYTES ? bytes : 0;
}

struct Scales {
  const S* from;
  const u8* zeros_from;
  // One for each column of the share and group; null where they are read where they lie.
  float* staged;
  u8* zeros;
  u32 groups, pitch;
  DEVICE Scales(const Problem& p, u8* end, const S* from, const u8* zeros_from)
      : from(from), zeros_from(zeros_from), staged(nullptr), zeros(nullptr), groups(groups_of(p)), pitch(pitch_of(p)) {
    const u32 bytes = scale_bytes(p), columns = p.units * (8 * HALVES);
    if (bytes) {
      staged = (float*)(end - bytes);
      zeros = (u8*)(staged + columns * pitch);
#pragma unroll 4
      for (u32 i = threadIdx.x; i < columns * groups; i += THREADS) {
        const u32 column = i / groups, group = i - column * groups;
        staged[column * pitch + group] = widen(from[at(p, column, group)]);
        if (HAS_ZEROS) zeros[column * pitch + group] = (u8)code_at(p, column, group);
      }
    }
    threads_meet<THREADS>(1);
  }
  // Where the scale of a column of the share lies.
  DEVICE u32 row_at(const Problem& p, u32 column) const {
    const u32 half = p.units * 8;
    return (p.first * 8 + (PAIRED && column >= half ? p.columns + column - half : column)) / BLOCK_ROWS;
  }
  DEVICE u32 at(const Problem& p, u32 column, u32 group) const { return row_at(p, column) * groups + group; }
  DEVICE u32 code_at(const Problem& p, u32 column, u32 group) const {
    return zeros_from[row_at(p, column) * ((groups + 1) / 2) + group / 2] >> group % 2 * 4 & 15;
  }
  DEVICE float scale(const Problem& p, u32 column, u32 group) const {
    return staged ? staged[column * pitch + group] : widen(from[at(p, column, group)]);
  }
  DEVICE u32 zero(const Problem& p, u32 column, u32 group) const {
    if (!HAS_ZEROS) return Wide<X>::WHOLE;
    return zero_of(staged ? zeros[column * pitch + group] : code_at(p, column, group));
  }
  // The column of the share that this lane has in a half of a tile.
  DEVICE u32 column(const Problem& p, u32 begin, u32 units, u32 tile, u32 half) const {
    const u32 unit = min((tile * 2 + half) / HALVES, units - 1);
    return ((PAIRED ? half * p.units : 0) + begin - p.first + unit) * 8 + threadIdx.x % 32 / 4;
  }
  // What sums of a half of a tile's columns are multiplied by.
  DEVICE float of_sums(const Problem& p, u32 begin, u32 units, u32 tile, u32 half) const {
    return GROUPED ? 1.0f : scale(p, column(p, begin, units, tile, half), 0);
  }
};

DEVICE void multiply_part(float (&sum)[OWN][M / 8][4], const Problem& p, const Part& part, const Scales& scales) {
  const u32 lane = threadIdx.x % 32, row = lane % 8, eights = part.units * HALVES;
  // The row of x that this lane has a part of; where there is but one, all columns of a fragment are it.
  const u32 of_x = X_ROWS == 1 ? 0 : lane / 4;
#pragma unroll
  for (int turn = 0; turn < SLICES * 64 / K_STEP / K_WARPS; ++turn) {
    const u32 step = turn * K_WARPS + part.of_k, slice = step * K_STEP / 64;
    u32 b[M / 8][2][PAIRS];
#pragma unroll
    for (int n = 0; n < M / 8; ++n)
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const u32 at = step * K_STEP % 64 + word * (K_STEP / 2) + lane % 4 * (K_STEP / 8), chunk = at / 8;
        const Bytes16* const from = MADE_BYTES ? part.made + (n * 8 + of_x) * PITCH + (part.chunk * SLICES + slice) * 8 + chunk
                                               : part.of_x + slice * (X_ROWS * 8) + (n * 8 + of_x) * 8 + (chunk ^ (X_ROWS == 1 ? slice % 8 : of_x));
        row_pairs(b[n][word], (const u8*)from + at % 8 * 2);
      }
    auto load_codes = [&](u32 (&to)[4], int own) {
      load_matrices(to, part.of_w + part.row_at[own] + step / 4 * part.apart[own] + (step % 4 * 2 + lane / 16 ^ row));
    };
    u32 loaded[TOGETHER ? OWN : 1][4];
#pragma unroll
    for (int own = 0; TOGETHER && own < OWN; ++own) load_codes(loaded[TOGETHER ? own : 0], own);
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
      const u32 tile = part.of_tiles + own * TILE_WARPS;
      u32(&codes)[4] = loaded[TOGETHER ? own : 0];
      if (TOGETHER || tile * 2 < eights) {
        if (!TOGETHER) load_codes(codes, own);
        u32 column[2], zero[2] = {Wide<X>::WHOLE, Wide<X>::WHOLE};
        float scale[2], of_group[M / 8][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) column[half] = GROUPED || HAS_ZEROS ? scales.column(p, part.begin, part.units, tile, half) : 0;
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          if (word == 0 || (GROUPED && !ONE_SCALE)) {
            // What is past the end of a row meets zeros of x.
            const u32 k = part.chunk * (SLICES * 64) + step * K_STEP + word * (K_STEP / 2);
            const u32 group = GROUPED ? min(k / (GROUPED ? GROUP : 1), scales.groups - 1) : 0;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              if (GROUPED) scale[half] = scales.scale(p, column[half], group);
              if (HAS_ZEROS) zero[half] = scales.zero(p, column[half], group);
            }
#pragma unroll
            for (int i = 0; i < (M / 8) * 4; ++i) (&of_group[0][0])[i] = 0.0f;
          }
          u32 upper[PAIRS], lower[PAIRS];
          wide(upper, codes[word * 2], zero[0]);
          wide(lower, codes[word * 2 + 1], zero[1]);
#pragma unroll
          for (int pair = 0; pair < PAIRS; pair += 2)
#pragma unroll
            for (int n = 0; n < M / 8; ++n)
              multiply_add<X>(GROUPED ? of_group[n] : sum[own][n], upper[pair], lower[pair], upper[pair + 1], lower[pair + 1], b[n][word][pair], b[n][word][pair + 1]);
          if (GROUPED && (word == 1 || !ONE_SCALE)) {
#pragma unroll
            for (int n = 0; n < M / 8; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i) sum[own][n][i] = fmaf(of_group[n][i], scale[i / 2], sum[own][n][i]);
          }
        }
      }
    }
  }
}

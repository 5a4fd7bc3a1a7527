// y[m, n] = sum over k of x[m, k] * w[n, k] for at most M rows, on tensor cores: a tile is 16 rows
// of w as the left operand, x is the right one. The order of k within a sum is free as long as
// both operands agree, so a lane takes 8 neighbouring k of its row of each: 16 bytes make two
// products of depth 16 and no lane exchanges anything.
//
// The blocks of a cluster share k, and SLICES warps of each share a tile: a warp has STEPS times 32
// of k, so that no block needs more of x than its own slices. It keeps AHEAD steps of w in flight
// (TILES tiles of them where a slice is short), the first of them before the wait. Where a block's x
// has no room, it comes in PIECES, each while the one before is at work.
//
// Tiles are dealt to the clusters in turn, AT_ONCE to each, so that all of them read neighbouring
// rows. The sums of a round of tiles are sent to the blocks of the cluster, which finish a share of
// each tile while the next round is at work, adding in the order of k: a result depends on the
// launch's constants and not on the grid. A tile of PAIRED columns is 8 rows of w and the 8 that lie
// half of w further on: each pair gives one column.
enum {
  N = M / 8,
  AT_ONCE = WARPS / SLICES,
  OUT = PAIRED ? COLUMNS / 2 : COLUMNS,
  TILE = PAIRED ? 8 : 16,
  ALL = (OUT + TILE - 1) / TILE,
  PIECE = STEPS / PIECES,
  FRAGMENTS = SLICES * PIECE * N,
  // Of a tile's 8 pairs of rows that lie 8 apart, those that a block finishes; of a round's tiles.
  SHARE = 8 / CLUSTER,
  OWN = AT_ONCE * SHARE,
  PARTS = CLUSTER * SLICES,
  PART = N * OWN * 16,
  ELEMENTS = PAIRED ? PART / 2 : PART,
  THREADS = WARPS * 32,
  EACH = (ELEMENTS + THREADS - 1) / THREADS
};

// A thread's element of a round: row of x, column of y, place in a part.
struct Element { bool there; u32 m, column, at; };

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) matmul(
    PARAMETERS, const i32* counts,
    u32 rows, u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  float* const parts = (float*)(staged + (PIECES > 1 ? 2 : 1) * FRAGMENTS * 32);
  u64* const arrived = (u64*)(parts + 2 * PARTS * PART);
  if (CLUSTER > 1) {
    if (threadIdx.x == 0) {
      barriers_of_bytes(arrived, 2);
      for (int i = 0; i < 2; ++i) expect_bytes(arrived + i, PARTS * PART * 4);
    }
    __syncwarp();
    cluster_arrive_relaxed();
  }
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4;
  const u32 slice = warp % SLICES, in_round = warp / SLICES, rank = blockIdx.x % CLUSTER;
  const u32 first = blockIdx.x / CLUSTER * AT_ONCE, next_round = gridDim.x / CLUSTER * AT_ONCE;
  const u32 part_of_k = rank * SLICES + slice, start = (part_of_k * STEPS * 4 + lane % 4) * 8;

  // Where the lane's next load is: steps of a tile in order, then the warp's next tile.
  u32 row = (first + in_round) * TILE + group;
  const W* from = w + (u64)row * DEPTH + start;
  Bytes16 lower[AHEAD], upper[AHEAD];
  u32 piece_of_w = 0;
  auto fetch = [&](int slot, int step) {
    const bool there = WHOLE || start + (piece_of_w * PIECE + step) * 32 < DEPTH;
    const W* const at = from + step * 32;
    lower[slot] = load_weight_around_if(there && row < OUT, at);
    upper[slot] = load_weight_around_if(there && (PAIRED ? row : row + 8) < OUT, at + (u64)(PAIRED ? OUT : 8) * DEPTH);
    if (step != PIECE - 1) return;
    if (PIECES > 1) {
      from += PIECE * 32;
      if (++piece_of_w < PIECES) return;
      from -= STEPS * 32;
      piece_of_w = 0;
    }
    row += next_round * TILE;
    from += (u64)next_round * TILE * DEPTH;
  };
  // A branch of their own: in the block of the wait, the assembler would sink them below it.
  if (first < ALL) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) fetch(i, i % ROUND);
  }
  // No kernel of a step writes its counts.
  u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  real = real < rows ? real : rows;
  PW_WAIT();

  // Fragments of 8 rows and a step, of all lanes; the warps of a slice copy what they all read.
  auto stage = [&](u32 piece, Bytes16* to) {
#pragma unroll
    for (int i = 0; i < (PIECE * N + AT_ONCE - 1) / AT_ONCE; ++i) {
      const u32 at = i * AT_ONCE + in_round, k = start + (piece * PIECE + at / N) * 32, m = at % N * 8 + group;
      if (PIECE * N % AT_ONCE != 0 && at >= PIECE * N) break;
      const bool there = (WHOLE || k < DEPTH) && m < real;
      copy_async_if(there, to + (slice * PIECE * N + at) * 32 + lane, there ? x + (u64)m * DEPTH + k : x);
    }
  };
  if (first < ALL) stage(0, staged);
  if (PIECES == 1) {
    copies_done();
    if (AT_ONCE > 1) __syncthreads();
  }
  // All blocks of the cluster run, and their barriers are there.
  if (CLUSTER > 1) cluster_wait();

  u32 done = 0, pieces = 0;
#ifdef AFTER
  After after[EACH];
#endif
  auto element = [&](int e, u32 base) {
    const u32 i = threadIdx.x + e * THREADS, pair = PAIRED ? i / 2 : i / 4, half = i / 2 % 2;
    const u32 local = pair / 4 % OWN, m = pair / 4 / OWN * 8 + pair % 4 * 2 + i % 2;
    const u32 in_tile = rank * SHARE + local % SHARE, tile = base + local / SHARE;
    const u32 column = PAIRED ? tile * 8 + in_tile : tile * 16 + half * 8 + in_tile;
    const bool there = (ELEMENTS % THREADS == 0 || i < ELEMENTS) && m < real && column < OUT;
    return Element{there, m, column, PAIRED ? pair * 4 + i % 2 : i};
  };
  // Ends a round of tiles whose sums all have come.
  auto finish = [&](u32 base) {
    const u32 buffer = (done - 1) % 2;
    if (CLUSTER > 1) {
      wait_bytes(arrived + buffer, (done - 1) / 2 % 2);
      if (threadIdx.x == 0) expect_bytes(arrived + buffer, PARTS * PART * 4);
    } else {
      __syncthreads();
    }
    const float* const part = parts + buffer * PARTS * PART;
    auto total = [&](u32 at) {
      float all = part[at];
#pragma unroll
      for (int q = 1; q < PARTS; ++q) all += part[q * PART + at];
      return all;
    };
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const Element own = element(e, base);
      if (!own.there) continue;
#ifdef AFTER
      Y rounded[2];
      narrow(rounded[0], total(own.at));
#if PAIRED
      narrow(rounded[1], total(own.at + 2));
      const Lane<Y>::type values[2][1] = {{widen(rounded[0])}, {widen(rounded[1])}};
      after[e].store(AFTER, counts, own.m, own.column, values);
#else
      after[e].store(AFTER, counts, own.m, own.column, widen(rounded[0]));
#endif
#else
      narrow(y[(u64)own.m * OUT + own.column], total(own.at));
#endif
    }
  };
  for (u32 tile = first; tile < ALL; tile += TILES * next_round) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const u32 base = tile + t * next_round;
      if (base < ALL) {
        float sum[N][4];
#pragma unroll
        for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
        for (u32 piece = 0; piece < PIECES; ++piece) {
          if (PIECES > 1) {
            // This piece has come, and nobody reads the one before any more.
            copies_done();
            __syncthreads();
            if (piece + 1 < PIECES || base + next_round < ALL) stage(piece + 1 < PIECES ? piece + 1 : 0, staged + (pieces + 1) % 2 * FRAGMENTS * 32);
          }
          const Bytes16* const xs = staged + ((PIECES > 1 ? pieces++ % 2 * FRAGMENTS : 0) + slice * PIECE * N) * 32 + lane;
#pragma unroll
          for (int step = 0; step < ROUND; ++step) {
            const int slot = (t * ROUND + step) % AHEAD, next = (step + AHEAD) % ROUND;
            if (step < PIECE) {
              const Bytes16 a = lower[slot], c = upper[slot];
#pragma unroll
              for (int n = 0; n < N; ++n) {
                const Bytes16 b = xs[(step * N + n) * 32];
                multiply_add<X>(sum[n], a.x, c.x, a.y, c.y, b.x, b.y);
                multiply_add<X>(sum[n], a.z, c.z, a.w, c.w, b.z, b.w);
              }
            }
            if (next < PIECE) fetch(slot, next);
          }
        }
        if (done > 0) finish(base - next_round);
#ifdef AFTER
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
          const Element own = element(e, base);
          if (own.there) after[e].ahead(AFTER, own.m, own.column);
        }
#endif
        // A part is [8 rows of x][pair of rows][2 rows of x][half][2].
        float* const part = parts + done % 2 * PARTS * PART + part_of_k * PART;
        const u32 local = in_round * SHARE + group % SHARE;
#pragma unroll
        for (int n = 0; n < N; ++n) {
          float* const to = part + ((n * OWN + local) * 4 + lane % 4) * 4;
          if (CLUSTER > 1) {
            send_cluster(to, arrived + done % 2, group / SHARE, sum[n]);
          } else {
            *(Bytes16*)to = Bytes16{__float_as_uint(sum[n][0]), __float_as_uint(sum[n][1]), __float_as_uint(sum[n][2]), __float_as_uint(sum[n][3])};
          }
        }
        ++done;
        if (base + next_round >= ALL) finish(base);
      }
    }
  }
}

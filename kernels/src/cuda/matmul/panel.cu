// y[m, n] = sum over k of x[m, k] * w[n, k] for at most M rows of x on Hopper's tensor cores: a tile
// is LINES rows of w as the left operand, x is the right one. The blocks of a cluster share the
// steps of a tile's k; each sends what it made to the block whose rows of x they are, which adds
// them up in the order of the blocks and finishes them. A result depends on M, k and the shape of w,
// not on the device.
//
// A warp copies steps of w and x to a ring in shared memory, of w before the wait, and GROUPS
// warpgroups multiply 64 rows of w each. PAIRED tiles have 64 rows of w and the same of its second
// half.
enum { DEPTH = 64, LINES = GROUPS * 64, W_BYTES = LINES * DEPTH * 2, SLOT_BYTES = W_BYTES + M * DEPTH * 2, THREADS = GROUPS * 128,
       SPAN = LINES / (PAIRED + 1), EIGHTS = SPAN / 8,
       // A row of sums: so long that neither fragments nor eights of them share banks.
       STRIDE = LINES + 4,
       // Eights of rows of x that a block adds up and finishes.
       OWN = (M / 8 + CLUSTER - 1) / CLUSTER };

struct Problem {
  u32 real, columns, ring, barriers, column, rank;
  // Steps of k that are this block's.
  u32 first, steps;
};

DEVICE u32 full(const Problem& p, u32 slot) { return p.barriers + slot * 8; }
DEVICE u32 empty(const Problem& p, u32 slot) { return p.barriers + (SLOTS + slot) * 8; }
DEVICE u32 slot_at(const Problem& p, u32 slot) { return p.ring + slot * SLOT_BYTES; }

DEVICE void fill_ring(const Problem& p, const TensorMap& x, const TensorMap& w) {
  auto of_w = [&](u32 step) {
    const u32 slot = step % SLOTS, barrier = full(p, slot);
    barrier_wait(empty(p, slot), step / SLOTS % 2 ^ 1);
    barrier_arrive_expecting(barrier, SLOT_BYTES);
#pragma unroll
    for (u32 group = 0; group < GROUPS; ++group)
      copy_box(slot_at(p, slot) + group * 64 * 128, w, (p.first + step) * DEPTH, p.column + (PAIRED ? p.columns * group : 64 * group), barrier);
  };
  auto of_x = [&](u32 step) {
    copy_box(slot_at(p, step % SLOTS) + W_BYTES, x, (p.first + step) * DEPTH, 0, full(p, step % SLOTS));
  };
  // The first weights are on their way before the wait.
  const u32 ahead = min(p.steps, (u32)SLOTS);
#pragma unroll 1
  for (u32 step = 0; step < ahead; ++step) of_w(step);
  PW_WAIT();
#pragma unroll 1
  for (u32 step = 0; step < p.steps; ++step) {
    if (step >= ahead) of_w(step);
    of_x(step);
  }
}

DEVICE void multiply_steps(const Problem& p, float (&sum)[M / 2]) {
  const u32 lane = threadIdx.x % 32, group = threadIdx.x / 128;
#pragma unroll
  for (int i = 0; i < M / 2; ++i) sum[i] = 0.0f;
#pragma unroll 1
  for (u32 step = 0; step < p.steps; ++step) {
    const u32 slot = step % SLOTS, at = slot_at(p, slot);
    barrier_wait(full(p, slot), step / SLOTS % 2);
    const u64 a = matrix_at(at + group * 64 * 128), b = matrix_at(at + W_BYTES);
    products_begin();
#pragma unroll
    for (int k = 0; k < DEPTH / 16; ++k) multiply_add_tile(sum, a + k * 2, b + k * 2, step | k);
    products_end();
    if (step) {
      products_done_but<1>();
      if (lane == 0) barrier_arrive(empty(p, (step - 1) % SLOTS));
    }
  }
  products_done_but<0>(sum);
}

// Where a thread of a block of the cluster leaves sums of eight rows of x for the block that adds
// them up, in the ring that nobody uses any more.
DEVICE u32 sent_at(const Problem& p, u32 from, u32 nth) { return p.ring + ((from * OWN + nth) * THREADS + threadIdx.x) * 16; }

// Eight rows of x after the other belong to the blocks in turn.
DEVICE void send_sums(const Problem& p, const float (&sum)[M / 2]) {
#pragma unroll
  for (int eight = 0; eight < M / 8; ++eight)
    if (eight % CLUSTER != p.rank) store_cluster(sent_at(p, p.rank, eight / CLUSTER), eight % CLUSTER, sum + eight * 4);
}

// Sums of this block's rows in the order of the blocks, by rows.
DEVICE void add_sums(const Problem& p, const float (&sum)[M / 2], u32 rows) {
  const u32 lane = threadIdx.x % 32, line = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int eight = 0; eight < M / 8; ++eight) {
    if (eight % CLUSTER != p.rank) continue;
    float all[4];
#pragma unroll
    for (u32 block = 0; block < CLUSTER; ++block) {
      float part[4];
      if (CLUSTER > 1 && block != p.rank) {
        const Bytes16 sent = load_shared(sent_at(p, block, eight / CLUSTER));
        part[0] = __uint_as_float(sent.x), part[1] = __uint_as_float(sent.y), part[2] = __uint_as_float(sent.z), part[3] = __uint_as_float(sent.w);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) part[i] = sum[eight * 4 + i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) all[i] = block == 0 ? part[i] : all[i] + part[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      store_shared(rows + ((eight / CLUSTER * 8 + lane % 4 * 2 + i % 2) * STRIDE + line + i / 2 * 8) * 4, all[i]);
  }
}

DEVICE Pack<Y, 8> eight_sums(u32 from) {
  const Bytes16 a = load_shared(from), b = load_shared(from + 16);
  auto f = [](u32 x) { return __uint_as_float(x); };
  const float sum[8] = {f(a.x), f(a.y), f(a.z), f(a.w), f(b.x), f(b.y), f(b.z), f(b.w)};
  Pack<Y, 8> rounded;
  round_eight(rounded, sum);
  return rounded;
}

DEVICE void finish_rows(const Problem& p, u32 rows, FINISH_PARAMS) {
  for (u32 i = threadIdx.x; i < OWN * 8 * EIGHTS; i += THREADS) {
    const u32 row = i / EIGHTS, eight = i % EIGHTS, n = p.column + eight * 8;
    const u32 m = (row / 8 * CLUSTER + p.rank) * 8 + row % 8;
    if (m >= p.real || n >= p.columns) continue;
    const Place place(p.columns, n);
    const u64 at = place.at(m);
    Columns columns;
    Beside beside;
    load_columns(FINISH_ARGS, place.part, place.column, columns);
    load_beside(FINISH_ARGS, at, beside);
    const u32 from = rows + (row * STRIDE + eight * 8) * 4;
    const Pack<Y, 8> first = eight_sums(from), second = PAIRED ? eight_sums(from + SPAN * 4) : first;
    store<16>(result_of(FINISH_ARGS, place.part) + at, finish(place.part, first, second, columns, beside));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, AT_ONCE) matmul(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, FINISH_PARAMS,
    const i32* counts, u32 rows, u32 columns, u32 depth,
    u32 real_base, u32 real_factor, u32 real_symbol) {
  PW_LAUNCH_DEPENDENTS();
  extern __shared__ Bytes16 staged[];
  __shared__ u64 barriers[2 * SLOTS];
  // No kernel of a step writes its counts.
  const u32 real = real_factor ? real_base + real_factor * (u32)counts[real_symbol] : rows;
  Problem p;
  p.real = min(real, rows);
  p.columns = columns / (PAIRED + 1);
  p.ring = (shared_address(staged) + 1023) / 1024 * 1024;
  p.barriers = shared_address(barriers);
  p.rank = cluster_rank();
  p.column = blockIdx.x / CLUSTER * SPAN;
  const u32 steps = blocks_for(depth, DEPTH);
  p.first = steps * p.rank / CLUSTER;
  p.steps = steps * (p.rank + 1) / CLUSTER - p.first;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      barrier_init(full(p, i), 1);
      barrier_init(empty(p, i), GROUPS * 4);
    }
    barriers_made();
  }
  __syncthreads();
  if (threadIdx.x >= THREADS) {
    if (threadIdx.x == THREADS) fill_ring(p, x, w);
    else PW_WAIT();
    __syncwarp();
    // Others write to the ring when all of the cluster are done with theirs, and are then heard.
    if (CLUSTER > 1) { cluster_meet(); cluster_meet(); }
  } else {
    float sum[M / 2];
    multiply_steps(p, sum);
    if (CLUSTER > 1) {
      cluster_meet();
      send_sums(p, sum);
      PW_WAIT();
      cluster_meet();
    } else {
      threads_meet<THREADS>(1);
      PW_WAIT();
    }
    const u32 rows = p.ring + (CLUSTER > 1 ? CLUSTER * OWN * THREADS * 16 : 0);
    add_sums(p, sum, rows);
    threads_meet<THREADS>(1);
    finish_rows(p, rows, FINISH_ARGS);
  }
}

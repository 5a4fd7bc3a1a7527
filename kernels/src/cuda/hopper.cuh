// What kernels of Hopper share: barriers in shared memory, tiles copied by the tensor memory
// accelerator, products of a warpgroup. Addresses in shared memory are numbers of 32 bits.

// A tensor in memory as the copies see it; encoded by the driver, a parameter of the launch.
struct alignas(64) TensorMap { u64 words[16]; };

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// ---- barriers: a phase ends when all `arrivals` came and all expected bytes are there
DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// The barriers made by this thread are seen by the cluster and by copies.
DEVICE void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives at the barrier at this place in a block of the cluster.
DEVICE void barrier_arrive_at(u32 barrier, u32 block) {
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
               " mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier), "r"(block) : "memory");
}
// Waits for the end of the phase of this parity: the first phase has parity 0, and a new barrier
// behaves as if one of parity 1 had just ended.
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  asm volatile("{.reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
               " @!done bra AGAIN;}" ::"r"(barrier), "r"(parity) : "memory");
}

// ---- clusters
DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// ---- copies of boxes to shared memory; elements outside the tensor are zeros
DEVICE void copy_box(u32 to, const TensorMap& map, u32 inner, u32 outer, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(&map), "r"(inner), "r"(outer), "r"(barrier) : "memory");
}
// The same of boxes of several slices, by the number of the first.
DEVICE void copy_slices(u32 to, const TensorMap& map, u32 row, u32 slice, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3, %4}], [%5];"
               ::"r"(to), "l"(&map), "r"(0), "r"(row), "r"(slice), "r"(barrier) : "memory");
}
// Of what is read once: the cache lets go of it first.
DEVICE void copy_slices_once(u32 to, const TensorMap& map, u32 row, u32 slice, u32 barrier) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1, {%2, %3, %4}], [%5], %6;"
               ::"r"(to), "l"(&map), "r"(0), "r"(row), "r"(slice), "r"(barrier), "l"(policy) : "memory");
}
// To the same place in all `blocks` of the cluster, each of whose barriers counts the bytes.
DEVICE void copy_box_to(u32 to, const TensorMap& map, u32 inner, u32 outer, u32 barrier, u16 blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(&map), "r"(inner), "r"(outer), "r"(barrier), "h"(blocks) : "memory");
}

// A box from shared memory, asked for by one thread; what lies outside the tensor is left out. What
// threads wrote there is seen after products_see_writes.
DEVICE void store_box(const TensorMap& map, u32 inner, u32 outer, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(&map), "r"(inner), "r"(outer), "r"(from) : "memory");
}
DEVICE void stores_end() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// This thread's boxes have left shared memory; or are where they go.
DEVICE void stores_have_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- products of a warpgroup (128 threads), in order and in flight until waited for
// Rows of 128 bytes, swizzled as the copies do it, at an address that is a multiple of 1024; a
// step of 16 elements in a row is 2 more.
DEVICE u64 matrix_at(u32 address) { return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void products_done_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// B whose rows are steps of the depth, in columns of 64 elements that lie `apart` bytes apart; a
// step of 16 rows is 128 more.
DEVICE u64 columns_at(u32 address, u32 apart) { return (u64)(address >> 4 & 0x3fff) | (u64)(apart >> 4) << 16 | 64ull << 32 | 1ull << 62; }
// As above, and these sums are read after it.
template <int LEFT, int N> DEVICE void products_done_but(float (&sum)[N]) {
  products_done_but<LEFT>();
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sum[i]) :: "memory");
}
// Products read what threads copied or wrote, once this thread knows that it is there.
DEVICE void products_see_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- warpgroups with parts of their own: registers move between them, 128 threads at a time
template <int COUNT> DEVICE void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
// Meetings of THREADS threads of a block, of which some only arrive; number 0 is of all.
template <int THREADS> DEVICE void threads_meet(u32 number) { asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory"); }
template <int THREADS> DEVICE void threads_arrive(u32 number) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS) : "memory"); }
DEVICE void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Arrives when all that this thread has copied so far is there.
DEVICE void barrier_arrive_copied(u32 barrier) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }
DEVICE void copy_shared_if(bool there, u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// ---- numbers in shared memory, of this block and of one of its cluster
DEVICE void store_shared(u32 to, float x, float y) { asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory"); }
DEVICE void store_shared(u32 to, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory"); }
DEVICE void store_shared(u32 to, const Bytes16& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
DEVICE Bytes16 load_shared(u32 from) {
  Bytes16 r;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(from) : "memory");
  return r;
}
// Four [8, 8] matrices of 16-bit elements, as load_matrices has them, each with rows and columns
// changed: a lane names the place of row lane % 8 of matrix lane / 8.
DEVICE void store_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
DEVICE void store_cluster(u32 to, u32 block, const float* x) {
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};}"
               ::"r"(to), "r"(block), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}
DEVICE void load_cluster(float (&x)[2], u32 from, u32 block) {
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %2, %3; ld.shared::cluster.v2.f32 {%0, %1}, [there];}"
               : "=f"(x[0]), "=f"(x[1]) : "r"(from), "r"(block) : "memory");
}
DEVICE void load_cluster(float (&x)[4], u32 from, u32 block) {
  asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(from), "r"(block) : "memory");
}

// ---- pairs of neighbouring 16-bit elements, as fragments hold them
#define PW_OF_PAIRS(NAME, INSTRUCTION, TYPE)                                        \
  template <> DEVICE u32 NAME<TYPE>(u32 a, u32 b) {                                 \
    u32 r;                                                                          \
    asm(INSTRUCTION "." #TYPE "x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));         \
    return r;                                                                       \
  }
template <class T> DEVICE u32 multiply_pair(u32 a, u32 b);
PW_OF_PAIRS(multiply_pair, "mul.rn", bf16)
PW_OF_PAIRS(multiply_pair, "mul.rn", f16)
template <class T> DEVICE u32 subtract_pair(u32 a, u32 b);
PW_OF_PAIRS(subtract_pair, "sub.rn", bf16)
PW_OF_PAIRS(subtract_pair, "sub.rn", f16)

// What every generated kernel includes: types, rounding, memory access, launch order.
// No header of a toolkit is needed, so that sources compile wherever NVRTC is.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
// Storage of bf16 and f16; arithmetic is in float.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct alignas(16) Bytes16 { u32 x, y, z, w; };
struct alignas(8) Bytes8 { u32 x, y; };

#define DEVICE __device__ __forceinline__

// The order of kernels. The next kernel may start at once, and waits where it first depends on
// this one; nothing that a kernel of the step writes is touched before PW_WAIT.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PW_LAUNCH_DEPENDENTS() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define PW_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define PW_LAUNCH_DEPENDENTS()
#define PW_WAIT()
#endif

#define NAN_F __int_as_float(0x7fffffff)
#define INF_F __int_as_float(0x7f800000)

// ---- rounding: to nearest even, as the unfused ops do
DEVICE u16 bf16_bits(float x) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
DEVICE u16 f16_bits(float x) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
DEVICE float of_bf16_bits(u16 b) { return __uint_as_float((u32)b << 16); }
DEVICE float of_f16_bits(u16 b) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(b));
  return r;
}
DEVICE float round_bf16(float x) { return of_bf16_bits(bf16_bits(x)); }
DEVICE float round_f16(float x) { return of_f16_bits(f16_bits(x)); }

// Integers to floats in one rounding: to odd on the way down, so that the next one is exact.
DEVICE float odd_float(double x) {
  float f = __double2float_rz(x);
  return (double)f == x ? f : __uint_as_float(__float_as_uint(f) | 1u);
}
DEVICE float float_of(i64 x) { return __double2float_rn((double)x); }
DEVICE float bf16_of(i64 x) { return round_bf16(odd_float((double)x)); }
DEVICE float f16_of(i64 x) { return round_f16(odd_float((double)x)); }

// ---- memory: elements of storage type T as arithmetic type
template <class T> struct Lane { typedef T type; };
template <> struct Lane<bf16> { typedef float type; };
template <> struct Lane<f16> { typedef float type; };

DEVICE float widen(float x) { return x; }
DEVICE float widen(bf16 x) { return of_bf16_bits(x.bits); }
DEVICE float widen(f16 x) { return of_f16_bits(x.bits); }
DEVICE i32 widen(i32 x) { return x; }
DEVICE i64 widen(i64 x) { return x; }
DEVICE u8 widen(u8 x) { return x; }
DEVICE void narrow(float& to, float x) { to = x; }
DEVICE void narrow(bf16& to, float x) { to.bits = bf16_bits(x); }
DEVICE void narrow(f16& to, float x) { to.bits = f16_bits(x); }
DEVICE void narrow(i32& to, i32 x) { to = x; }
DEVICE void narrow(i64& to, i64 x) { to = x; }
DEVICE void narrow(u8& to, u8 x) { to = x; }

template <int BYTES> struct Unit;
template <> struct Unit<1> { typedef u8 type; };
template <> struct Unit<2> { typedef u16 type; };
template <> struct Unit<4> { typedef u32 type; };
template <> struct Unit<8> { typedef Bytes8 type; };
template <> struct Unit<16> { typedef Bytes16 type; };

// V neighbouring elements as they lie in memory, moved in pieces of ALIGN bytes.
template <class T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack {
  T at[V];
};
template <int ALIGN, class T, int V> DEVICE void load(Pack<T, V>& to, const T* from) {
  typedef typename Unit<ALIGN>::type U;
#pragma unroll
  for (int i = 0; i < (int)sizeof(T) * V / ALIGN; ++i) ((U*)to.at)[i] = ((const U*)from)[i];
}
template <int ALIGN, class T, int V> DEVICE void store(T* to, const Pack<T, V>& from) {
  typedef typename Unit<ALIGN>::type U;
#pragma unroll
  for (int i = 0; i < (int)sizeof(T) * V / ALIGN; ++i) ((U*)to)[i] = ((const U*)from.at)[i];
}
// Weights: written by no kernel of the step, read once, kept out of the first-level cache.
DEVICE Bytes16 load_weight(const void* from) {
  Bytes16 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(from));
  return r;
}
// Zeros where nothing is `there`. Predicated, so that loads in a row wait for none of them.
DEVICE Bytes16 load_weight_if(bool there, const void* from) {
  Bytes16 r;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0;"
               " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
               " @p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "=&r"(r.x), "=&r"(r.y), "=&r"(r.z), "=&r"(r.w)
               : "l"(from), "r"((u32)there));
  return r;
}
// The same where neighbouring loads are of many rows: memory gives the 256 bytes around at once.
DEVICE Bytes16 load_weight_around_if(bool there, const void* from) {
  Bytes16 r;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0;"
               " mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
               " @p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];}"
               : "=&r"(r.x), "=&r"(r.y), "=&r"(r.z), "=&r"(r.w)
               : "l"(from), "r"((u32)there));
  return r;
}
// A copy to shared memory that passes no register, of zeros where nothing is `there`; the thread
// sees it after copies_done.
DEVICE void copy_async_if(bool there, Bytes16* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEVICE void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// The copies since the last time, which may be none, become a group; then all groups but the
// youngest LEFT are waited for.
DEVICE void group_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void groups_done_but() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// The row of a table that an index names, clamped to the table.
DEVICE u64 table_row(i64 index, u64 extent) {
  return index <= 0 || extent == 0 ? 0 : (u64)index < extent ? (u64)index : extent - 1;
}
DEVICE u32 blocks_for(u32 units, u32 each) { return units / each + (units % each != 0 ? 1 : 0); }

// ---- elementwise ops
DEVICE i32 op_neg(i32 a) { return (i32)(0u - (u32)a); }
DEVICE i64 op_neg(i64 a) { return (i64)(0ull - (u64)a); }
DEVICE float op_neg(float a) { return -a; }
DEVICE float op_abs(float a) { return fabsf(a); }
DEVICE i32 op_abs(i32 a) { return a < 0 ? op_neg(a) : a; }
DEVICE i64 op_abs(i64 a) { return a < 0 ? op_neg(a) : a; }
DEVICE float op_rsqrt(float a) { return 1.0f / sqrtf(a); }

DEVICE float op_add(float a, float b) { return a + b; }
DEVICE i32 op_add(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE i64 op_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE u8 op_add(u8 a, u8 b) { return (u8)((u32)a + (u32)b); }
DEVICE float op_sub(float a, float b) { return a - b; }
DEVICE i32 op_sub(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
DEVICE i64 op_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEVICE u8 op_sub(u8 a, u8 b) { return (u8)((u32)a - (u32)b); }
DEVICE float op_mul(float a, float b) { return a * b; }
DEVICE i32 op_mul(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
DEVICE i64 op_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEVICE u8 op_mul(u8 a, u8 b) { return (u8)((u32)a * (u32)b); }
DEVICE float op_div(float a, float b) { return a / b; }
DEVICE i32 op_div(i32 a, i32 b) { return b == 0 ? 0 : b == -1 ? op_neg(a) : a / b; }
DEVICE i64 op_div(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? op_neg(a) : a / b; }
DEVICE u8 op_div(u8 a, u8 b) { return b == 0 ? (u8)0 : (u8)(a / b); }
// A NaN loses to a number.
DEVICE float op_max(float a, float b) { return b != b || a > b ? a : b; }
DEVICE float op_min(float a, float b) { return b != b || a < b ? a : b; }
template <class T> DEVICE T op_max(T a, T b) { return a > b ? a : b; }
template <class T> DEVICE T op_min(T a, T b) { return a < b ? a : b; }

// ---- casts: floats to integers truncate and saturate, NaN becomes 0
DEVICE i32 i32_of(float a) { return a != a ? 0 : a >= 2147483648.0f ? 2147483647 : a <= -2147483648.0f ? (i32)0x80000000u : (i32)a; }
DEVICE i64 i64_of(float a) {
  return a != a ? 0 : a >= 9223372036854775808.0f ? 0x7fffffffffffffffll : a <= -9223372036854775808.0f ? (i64)0x8000000000000000ull : (i64)a;
}
DEVICE u8 u8_of(float a) { return a >= 255.0f ? (u8)255 : a > 0.0f ? (u8)(u32)a : (u8)0; }
DEVICE i32 i32_of(i64 a) { return a > 2147483647ll ? 2147483647 : a < -2147483648ll ? (i32)0x80000000u : (i32)a; }
DEVICE u8 u8_of(i64 a) { return a > 255 ? (u8)255 : a < 0 ? (u8)0 : (u8)a; }

// ---- exchange between threads
DEVICE float from_lane(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE i32 from_lane(i32 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE i64 from_lane(i64 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE u64 from_lane(u64 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE u32 from_lane(u32 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE u8 from_lane(u8 x, int mask) { return (u8)__shfl_xor_sync(0xffffffffu, (u32)x, mask); }

// All THREADS threads of a group (a power of two, at least a warp) meet.
template <int THREADS> DEVICE void meet(u32 group) {
  if (THREADS == 32) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(THREADS) : "memory");
  }
}

// The threads of all blocks of a cluster meet: each arrives, and later waits for the others. What
// they wrote to shared memory before is seen after.
DEVICE void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
DEVICE void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// The same where nothing that was written before needs to be seen after, but barriers of bytes: what
// is on the way from memory is not waited for.
DEVICE void cluster_arrive_relaxed() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
// Barriers of bytes in shared memory: a phase of one ends when its block has said how many bytes it
// expects, and blocks of the cluster have sent so many.
DEVICE void barriers_of_bytes(u64* barriers, int count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  for (int i = 0; i < count; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((u32)__cvta_generic_to_shared(barriers + i)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DEVICE void expect_bytes(u64* barrier, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(barrier)), "r"(bytes) : "memory");
#endif
}
// Waits for the end of a phase of this parity; the first has parity 0.
DEVICE void wait_bytes(u64* barrier, u32 parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{.reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
               " @!done bra AGAIN;}" ::"r"((u32)__cvta_generic_to_shared(barrier)), "r"(parity) : "memory");
#endif
}
// Four floats to where `to` lies in the block of this rank, whose barrier counts them.
DEVICE void send_cluster(float* to, u64* barrier, u32 rank, const float (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{.reg .u32 there, counts; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 counts, %1, %2;"
               " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [counts];}"
               ::"r"((u32)__cvta_generic_to_shared(to)), "r"((u32)__cvta_generic_to_shared(barrier)), "r"(rank),
               "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#endif
}
// Two floats to where `to` lies in the shared memory of the block of this rank in the cluster.
DEVICE void store_cluster(const void* to, u32 rank, float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{.reg .u32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v2.f32 [there], {%2, %3};}"
               ::"r"((u32)__cvta_generic_to_shared(to)), "r"(rank), "f"(x), "f"(y) : "memory");
#endif
}

struct Sum { template <class T> static DEVICE T of(T a, T b) { return op_add(a, b); } };
struct Largest { template <class T> static DEVICE T of(T a, T b) { return op_max(a, b); } };
struct Smallest { template <class T> static DEVICE T of(T a, T b) { return op_min(a, b); } };

// One value of WIDTH neighbouring lanes; every lane gets it.
template <class OP, int WIDTH, class T> DEVICE T lanes(T x) {
#pragma unroll
  for (int mask = WIDTH / 2; mask > 0; mask /= 2) x = OP::of(x, from_lane(x, mask));
  return x;
}
// One value of all THREADS threads of a group; every thread gets it. `exchange` holds a value for
// each warp and is used once.
template <class OP, int THREADS, class T> DEVICE T group_of(T x, u32 lane, u32 group, T* exchange) {
  x = lanes<OP, 32>(x);
  if (THREADS > 32) {
    if (lane % 32 == 0) exchange[lane / 32] = x;
    meet<THREADS>(group);
    x = exchange[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; ++i) x = OP::of(x, exchange[i]);
  }
  return x;
}

// ---- tensor cores: the warp's sum [16, 8] += a [16, 16] * b [16, 8], each lane with its
// fragments of PTX's m16n8k16
#define PW_MMA(TYPES)                                                                        \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPES ".f32 "                        \
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                       \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                      \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
template <class T> DEVICE void multiply_add(float* sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
template <> DEVICE void multiply_add<bf16>(float* sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  PW_MMA("bf16.bf16");
}
template <> DEVICE void multiply_add<f16>(float* sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  PW_MMA("f16.f16");
}
// Four [8, 8] matrices of 16-bit elements: a lane names row lane % 8 of matrix lane / 8, and gets
// of each matrix the 2 elements lane % 4 of row lane / 4; transposed, column lane / 4 of rows
// lane % 4 * 2 and the next.
DEVICE void load_matrices(u32 (&to)[4], const Bytes16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
DEVICE void load_matrices_transposed(u32 (&to)[4], const Bytes16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
// Two neighbouring elements, as fragments hold them.
template <class T> DEVICE u32 pair_of(float low, float high);
template <> DEVICE u32 pair_of<bf16>(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <> DEVICE u32 pair_of<f16>(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// To about 2 units in the last place; results below the normal numbers are 0.
DEVICE float power_of_two(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// a / b to the nearest but for a few last places, where b is 1 or more. It has no branch, so that
// several overlap.
DEVICE float quotient(float a, float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b * 0.25f));
  const float q = a * 0.25f * r, rest = fmaf(-q, b, a);
  // Nothing is left where one of them is infinite.
  return rest == rest ? fmaf(rest * 0.25f, r, q) : q;
}

// ---- searches: larger first, then the lower index; NaNs last
template <class T> DEVICE bool before(T a, i32 ia, T b, i32 ib) {
  bool na = a != a, nb = b != b;
  if (na || nb) return na == nb ? ia < ib : nb;
  return a > b || (a == b && ia < ib);
}
// The first element by `before` of all threads of a group; an index of 0x7fffffff is none.
template <int THREADS, class T>
DEVICE void first_of(T& x, i32& index, u32 lane, u32 group, T* values, i32* indices) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    T y = from_lane(x, mask);
    i32 at = from_lane(index, mask);
    if (at != 0x7fffffff && (index == 0x7fffffff || before(y, at, x, index))) { x = y; index = at; }
  }
  if (THREADS > 32) {
    meet<THREADS>(group);
    if (lane % 32 == 0) { values[lane / 32] = x; indices[lane / 32] = index; }
    meet<THREADS>(group);
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) {
      T y = values[i];
      i32 at = indices[i];
      if (at != 0x7fffffff && (index == 0x7fffffff || before(y, at, x, index))) { x = y; index = at; }
    }
  }
}

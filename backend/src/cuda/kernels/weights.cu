// Makes weights on the device: strided copies, casts, unpacked integers and normal numbers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Numbered as in `dtype_code`.
enum DType { F32, F16, BF16, I32, I64, U8, BOOL, E4M3 };

// The float next to x that is odd in its last bit where x is between two floats: rounding it once
// more, to fewer bits, gives what rounding x would.
__device__ float round_to_odd(double x) {
    float toward_zero = __double2float_rz(x);
    bool exact = (double)toward_zero == x || x != x;
    return exact ? toward_zero : __uint_as_float(__float_as_uint(toward_zero) | 1u);
}

__device__ u16 to_f16(double x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(round_to_odd(x)));
    return bits;
}

__device__ u16 to_bf16(double x) {
    u32 bits = __float_as_uint(round_to_odd(x));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Nearest, ties to even; what is too large becomes the largest number, 448.
__device__ u8 to_e4m3(double x) {
    u8 sign = (u8)((u64)__double_as_longlong(x) >> 56 & 0x80);
    if (x != x) return 0x7f;
    double magnitude = fmin(fabs(x), 448.0);
    int exponent = max((int)(__double_as_longlong(magnitude) >> 52) - 1023, -6);
    // Numbers of one exponent are 2^(exponent - 3) apart, below 2^-6 as above it.
    int steps = __double2int_rn(magnitude * __longlong_as_double((long long)(1026 - exponent) << 52));
    return sign | (u8)(((exponent + 6) << 3) + steps);
}

__device__ double from_e4m3(u8 bits) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (exponent == 15 && mantissa == 7) return __longlong_as_double(0x7ff8000000000000ll);
    double steps = exponent == 0 ? mantissa : 8 + mantissa;
    int power = exponent == 0 ? -9 : exponent - 10;
    double magnitude = steps * __longlong_as_double((long long)(power + 1023) << 52);
    return bits >> 7 ? -magnitude : magnitude;
}

__device__ double load(const void *from, u64 i, int dtype) {
    switch (dtype) {
    case F32: return ((const float *)from)[i];
    case F16: {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(((const u16 *)from)[i]));
        return x;
    }
    case BF16: return __uint_as_float((u32)((const u16 *)from)[i] << 16);
    case I32: return ((const int *)from)[i];
    case I64: return (double)((const long long *)from)[i];
    case E4M3: return from_e4m3(((const u8 *)from)[i]);
    default: return ((const u8 *)from)[i];
    }
}

// Floats round to nearest even; integers truncate and saturate, NaN becomes 0.
__device__ void store(void *to, u64 i, int dtype, double x) {
    switch (dtype) {
    case F32: ((float *)to)[i] = (float)x; break;
    case F16: ((u16 *)to)[i] = to_f16(x); break;
    case BF16: ((u16 *)to)[i] = to_bf16(x); break;
    case I32: ((int *)to)[i] = x != x ? 0 : __double2int_rz(x); break;
    case I64: ((long long *)to)[i] = x != x ? 0 : __double2ll_rz(x); break;
    case U8: ((u8 *)to)[i] = x > 0.0 ? (u8)(x < 255.0 ? x : 255.0) : 0; break;
    case E4M3: ((u8 *)to)[i] = to_e4m3(x); break;
    default: ((u8 *)to)[i] = x != 0.0; break;
    }
}

__device__ u64 first() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ u64 step() { return (u64)gridDim.x * blockDim.x; }

extern "C" __global__ void cast(const void *from, void *to, u64 n, int from_dtype, int to_dtype) {
    for (u64 i = first(); i < n; i += step()) {
        if (from_dtype == to_dtype && to_dtype == I64) {
            ((long long *)to)[i] = ((const long long *)from)[i];
        } else {
            store(to, i, to_dtype, load(from, i, from_dtype));
        }
    }
}

// Lines of two integers of 4 bits a byte, the first in the lower half, out of words of eight along an
// axis; byte i of `shifts` is the lowest bit of the word's integer i.
extern "C" __global__ void unpack(const u32 *words, u8 *to, u64 lines, u64 line, u64 across, u64 axis,
                                  u64 shifts, u32 less) {
    u64 bytes = (line + 1) / 2;
    for (u64 at = first(); at < lines * bytes; at += step()) {
        u64 i = at / bytes, j = at % bytes * 2;
        u32 pair = 0;
        for (u64 half = 0; half < 2 && j + half < line; half++) {
            u64 column = j + half;
            u64 word = axis == 0 ? i / 8 * across + column : i * across + column / 8;
            u32 shift = (u32)(shifts >> 8 * ((axis == 0 ? i : column) % 8)) & 31;
            pair |= ((words[word] >> shift) - less & 15) << 4 * half;
        }
        to[at] = (u8)pair;
    }
}

// Element i of a box of up to six axes, outermost first; strides in elements.
template <typename T>
__device__ void copy(const T *from, T *to, u64 n, const u64 *extents, const u64 *from_strides,
                     const u64 *to_strides) {
    for (u64 i = first(); i < n; i += step()) {
        u64 rest = i, source = 0, target = 0;
#pragma unroll
        for (int axis = 5; axis >= 0; axis--) {
            u64 at = rest % extents[axis];
            rest /= extents[axis];
            source += at * from_strides[axis];
            target += at * to_strides[axis];
        }
        to[target] = from[source];
    }
}

#define COPY(bytes, type)                                                                         \
    extern "C" __global__ void copy_##bytes(                                                      \
        const type *from, type *to, u64 n, u64 e0, u64 e1, u64 e2, u64 e3, u64 e4, u64 e5,        \
        u64 s0, u64 s1, u64 s2, u64 s3, u64 s4, u64 s5, u64 t0, u64 t1, u64 t2, u64 t3, u64 t4,   \
        u64 t5) {                                                                                 \
        u64 extents[6] = {e0, e1, e2, e3, e4, e5};                                                \
        u64 from_strides[6] = {s0, s1, s2, s3, s4, s5};                                           \
        u64 to_strides[6] = {t0, t1, t2, t3, t4, t5};                                             \
        copy(from, to, n, extents, from_strides, to_strides);                                     \
    }
COPY(1, u8)
COPY(2, u16)
COPY(4, u32)
COPY(8, u64)
COPY(16, uint4)

// Philox 4x32 with 10 rounds (Salmon and others, SC 2011).
__device__ uint4 philox(u64 counter, u32 k0, u32 k1) {
    uint4 c = make_uint4((u32)counter, (u32)(counter >> 32), 0, 0);
    for (int round = 0; round < 10; round++) {
        u64 left = (u64)c.x * 0xd2511f53u, right = (u64)c.z * 0xcd9e8d57u;
        c = make_uint4((u32)(right >> 32) ^ c.y ^ k0, (u32)right, (u32)(left >> 32) ^ c.w ^ k1,
                       (u32)left);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c;
}

// Box and Muller's transform of 24 bits each; the first is in (0, 1].
__device__ float2 normal_pair(u32 a, u32 b) {
    const float scale = 1.0f / 16777216.0f;
    float u = (float)((a >> 8) + 1) * scale;
    float angle = (float)(b >> 8) * scale * 6.28318530717958647692f;
    float radius = sqrtf(-2.0f * logf(u)), s, c;
    sincosf(angle, &s, &c);
    return make_float2(radius * c, radius * s);
}

extern "C" __global__ void normal(void *to, u64 n, int dtype, u32 k0, u32 k1, float deviation) {
    for (u64 block = first(); block * 4 < n; block += step()) {
        uint4 bits = philox(block, k0, k1);
        float2 a = normal_pair(bits.x, bits.y), b = normal_pair(bits.z, bits.w);
        float x[4] = {a.x, a.y, b.x, b.y};
        for (u64 j = 0; j < 4 && block * 4 + j < n; j++) {
            store(to, block * 4 + j, dtype, (double)(x[j] * deviation));
        }
    }
}

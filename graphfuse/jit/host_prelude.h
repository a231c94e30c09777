// Makes CUDA source compile as C++17: the names that nvcc supplies by itself. Follows host_abi.h; includes nothing,
// because the standard headers cost more than a kernel. Blocks and threads are one-dimensional, as in all our kernels.

#define GF_HOST 1

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#if !defined(__clang__)
#define __builtin_assume(condition) ((void)0)
#endif

// Names of ours are written ::gf_ in macros, because kernels have names like that too, in namespaces.

// --- where a thread stands, and waiting for others ------------------------------------------------------------------

// Each OS thread runs one thread of a block at a time; the run time sets this before it does.
thread_local __attribute__((visibility("hidden"))) gf_thread *gf_self;
extern "C" __attribute__((visibility("default"))) gf_thread **gf_self_slot() { return &gf_self; }

#define threadIdx (::gf_self->idx)
#define blockIdx (::gf_self->block->idx)
#define blockDim (::gf_self->block->dim)
#define gridDim (::gf_self->block->grid)
static const int warpSize = 32;

static inline unsigned long long gf_wait(gf_op op, int site, unsigned mask, unsigned long long value, unsigned source) {
    return gf_self->wait(gf_self, op, site, mask, value, source);
}

static inline unsigned gf_lane() { return threadIdx.x & 31; }

template <class T> static inline T gf_shfl(int site, unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = gf_wait(GF_SHFL, site, mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

// The lane that each form of shuffle reads, by CUDA's rules for segments of `width` lanes.
template <class T> static inline T gf_shfl_idx(int site, unsigned mask, T value, int lane, int width = 32) {
    return gf_shfl(site, mask, value, (gf_lane() & ~(width - 1u)) | (lane & (width - 1u)));
}
template <class T> static inline T gf_shfl_xor(int site, unsigned mask, T value, int lanes, int width = 32) {
    unsigned end = (gf_lane() & ~(width - 1u)) + width, other = gf_lane() ^ lanes;
    return gf_shfl(site, mask, value, other < end ? other : gf_lane());
}
template <class T> static inline T gf_shfl_down(int site, unsigned mask, T value, unsigned delta, int width = 32) {
    bool inside = (gf_lane() & (width - 1u)) + delta < unsigned(width);
    return gf_shfl(site, mask, value, inside ? gf_lane() + delta : gf_lane());
}
template <class T> static inline T gf_shfl_up(int site, unsigned mask, T value, unsigned delta, int width = 32) {
    bool inside = (gf_lane() & (width - 1u)) >= delta;
    return gf_shfl(site, mask, value, inside ? gf_lane() - delta : gf_lane());
}
static inline unsigned gf_ballot(int site, unsigned mask, bool value) { return unsigned(gf_wait(GF_BALLOT, site, mask, value, 0)); }
static inline unsigned gf_mask(unsigned mask = 0xffffffffu) { return mask; }

#define __syncthreads() ((void)::gf_wait(GF_BARRIER, __LINE__, 0, 0, 0))
#define __syncwarp(...) ((void)::gf_wait(GF_SYNCWARP, __LINE__, ::gf_mask(__VA_ARGS__), 0, 0))
#define __shfl_sync(...) ::gf_shfl_idx(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) ::gf_shfl_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) ::gf_shfl_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) ::gf_shfl_up(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, value) ::gf_ballot(__LINE__, mask, value)
#define __any_sync(mask, value) (::gf_ballot(__LINE__, mask, value) != 0)
#define __all_sync(mask, value) (::gf_ballot(__LINE__, mask, !(value)) == 0)

// --- bits -----------------------------------------------------------------------------------------------------------

template <class To, class From> static inline To gf_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}
static inline unsigned __float_as_uint(float x) { return gf_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return gf_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return gf_bits<float>(x); }
static inline float __int_as_float(int x) { return gf_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return gf_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return gf_bits<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// --- memory ---------------------------------------------------------------------------------------------------------

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stwb(T *p, T v) { *p = v; }

#define GF_VEC2(name, T) struct __align__(2 * sizeof(T)) name { T x, y; }; \
    static inline name make_##name(T x, T y) { return {x, y}; }
#define GF_VEC4(name, T) struct __align__(sizeof(T) < 8 ? 4 * sizeof(T) : 16) name { T x, y, z, w; }; \
    static inline name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }
GF_VEC2(float2, float) GF_VEC4(float4, float) GF_VEC2(double2, double)
GF_VEC2(int2, int) GF_VEC4(int4, int) GF_VEC2(uint2, unsigned) GF_VEC4(uint4, unsigned)
GF_VEC2(longlong2, long long) GF_VEC2(ulonglong2, unsigned long long)
GF_VEC4(uchar4, unsigned char) GF_VEC2(ushort2, unsigned short) GF_VEC4(ushort4, unsigned short)

// --- mathematics ----------------------------------------------------------------------------------------------------

#define GF_MATH1(name) extern "C" double name(double) noexcept; extern "C" float name##f(float) noexcept;
#define GF_MATH2(name) extern "C" double name(double, double) noexcept; extern "C" float name##f(float, float) noexcept;
GF_MATH1(exp) GF_MATH1(exp2) GF_MATH1(expm1) GF_MATH1(log) GF_MATH1(log2) GF_MATH1(log10) GF_MATH1(log1p)
GF_MATH1(sqrt) GF_MATH1(cbrt) GF_MATH1(sin) GF_MATH1(cos) GF_MATH1(tan) GF_MATH1(asin) GF_MATH1(acos) GF_MATH1(atan)
GF_MATH1(sinh) GF_MATH1(cosh) GF_MATH1(tanh) GF_MATH1(asinh) GF_MATH1(acosh) GF_MATH1(atanh)
GF_MATH1(erf) GF_MATH1(erfc) GF_MATH1(lgamma) GF_MATH1(tgamma)
GF_MATH1(floor) GF_MATH1(ceil) GF_MATH1(trunc) GF_MATH1(rint) GF_MATH1(nearbyint) GF_MATH1(round) GF_MATH1(fabs)
GF_MATH2(pow) GF_MATH2(fmod) GF_MATH2(remainder) GF_MATH2(atan2) GF_MATH2(hypot) GF_MATH2(copysign) GF_MATH2(fmin) GF_MATH2(fmax)
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" long long llrintf(float) noexcept;
extern "C" long long llrint(double) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long long llabs(long long) noexcept;

static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(float x) { return __builtin_signbit(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __saturatef(float x) { return !(x > 0.0f) ? 0.0f : x > 1.0f ? 1.0f : x; }

// Conversions that saturate and take NaN to 0, as the GPU's do. (A plain cast out of range is undefined in C++.)
template <class I> static constexpr I gf_largest() { return I(-1) > I(0) ? I(-1) : I((1ull << (8 * sizeof(I) - 1)) - 1); }
template <class I, class F> static inline I gf_saturate(F x, F low, F past) {
    return x != x ? I(0) : x < low ? I(low) : x >= past ? gf_largest<I>() : I(x);
}
static inline int __double2int_rz(double x) { return gf_saturate<int>(x, -0x1p31, 0x1p31); }
static inline int __float2int_rz(float x) { return gf_saturate<int>(x, -0x1p31f, 0x1p31f); }
static inline int __float2int_rn(float x) { return __float2int_rz(rintf(x)); }
static inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
static inline int __float2int_ru(float x) { return __float2int_rz(ceilf(x)); }
static inline unsigned __float2uint_rz(float x) { return gf_saturate<unsigned>(x, 0.0f, 0x1p32f); }
static inline unsigned __float2uint_rn(float x) { return __float2uint_rz(rintf(x)); }
static inline int __double2int_rn(double x) { return __double2int_rz(rint(x)); }
static inline long long __float2ll_rz(float x) { return gf_saturate<long long>(x, -0x1p63f, 0x1p63f); }
static inline long long __float2ll_rn(float x) { return __float2ll_rz(rintf(x)); }
static inline long long __double2ll_rz(double x) { return gf_saturate<long long>(x, -0x1p63, 0x1p63); }
static inline long long __double2ll_rn(double x) { return __double2ll_rz(rint(x)); }
static inline unsigned long long __float2ull_rz(float x) { return gf_saturate<unsigned long long>(x, 0.0f, 0x1p64f); }
static inline unsigned long long __double2ull_rz(double x) { return gf_saturate<unsigned long long>(x, 0.0, 0x1p64); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __ll2float_rn(long long x) { return float(x); }
static inline float __double2float_rn(double x) { return float(x); }

// --- entry points ---------------------------------------------------------------------------------------------------

// Calls a kernel with arguments that lie in an array of 64-bit words: addresses first, then whole numbers.
template <class T> struct gf_arg {
    static_assert(T(-1) < T(1) || T(1) > T(0), "a kernel takes pointers and whole numbers");
    static T read(unsigned long long word) { return T(word); }
};
template <class T> struct gf_arg<T *> {
    static T *read(unsigned long long word) { return reinterpret_cast<T *>(word); }
};
template <class T> struct gf_arg<T *__restrict__> : gf_arg<T *> {};

template <int... I> struct gf_sequence {};
template <int N, int... I> struct gf_upto : gf_upto<N - 1, N - 1, I...> {};
template <int... I> struct gf_upto<0, I...> { using type = gf_sequence<I...>; };

template <class... P, int... I>
static inline void gf_call(void (*kernel)(P...), const unsigned long long *words, gf_sequence<I...>) {
    kernel(gf_arg<P>::read(words[I])...);
}
template <class... P> static inline void gf_call(void (*kernel)(P...), const unsigned long long *words) {
    gf_call(kernel, words, typename gf_upto<sizeof...(P)>::type());
}
template <class... P> static constexpr int gf_arity(void (*)(P...)) { return sizeof...(P); }

#define GF_EXPORT(kernel) \
    extern "C" __attribute__((visibility("default"))) void kernel##_invoke(const unsigned long long *words) { ::gf_call(&kernel, words); } \
    extern "C" __attribute__((visibility("default"))) int kernel##_arity() { return ::gf_arity(&kernel); }

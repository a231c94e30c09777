// Device prelude of every generated kernel. It includes nothing, so that NVRTC starts in no time, and it compiles as C++17
// for the host device too (GF_HOST). Storage types of small floats are bit patterns: values are computed in float.

typedef signed char gf_i8;
typedef unsigned char gf_u8;
typedef short gf_i16;
typedef unsigned short gf_u16;
typedef int gf_i32;
typedef unsigned int gf_u32;
typedef long long gf_i64;
typedef unsigned long long gf_u64;
typedef bool gf_bool;
struct gf_f16 { gf_u16 bits; };
struct gf_bf16 { gf_u16 bits; };
// A float of 8 bits, MANTISSA of them, with this exponent BIAS. KIND: 0 as IEEE; 1 finite, all ones is NaN; 2 finite, -0 is NaN.
template <int MANTISSA, int BIAS, int KIND> struct gf_float8 { gf_u8 bits; };
typedef gf_float8<3, 7, 1> gf_f8e4m3;
typedef gf_float8<3, 8, 2> gf_f8e4m3z;
typedef gf_float8<2, 15, 0> gf_f8e5m2;
typedef gf_float8<2, 16, 2> gf_f8e5m2z;

#define GF_INLINE __device__ __forceinline__
#ifdef GF_HOST
#define GF_UNROLL _Pragma("GCC unroll 32")
#else
#define GF_UNROLL _Pragma("unroll")
#endif
#define GF_LANES(n) GF_UNROLL for (int j = 0; j < n; ++j)

// N elements moved by accesses of up to 16 bytes.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) gf_vec { T v[N]; };
template <class T, int N> GF_INLINE gf_vec<T, N> gf_load_vec(const T* p) { return *reinterpret_cast<const gf_vec<T, N>*>(p); }
template <class T, int N> GF_INLINE void gf_store_vec(T* p, const gf_vec<T, N>& x) { *reinterpret_cast<gf_vec<T, N>*>(p) = x; }

// Loads that are asked for before they are needed. A compiler puts other loads off until their value is used; these it issues
// one after another, as they are written.
#ifdef GF_HOST
template <class T, int N> GF_INLINE gf_vec<T, N> gf_load_early(const T* p) { return gf_load_vec<T, N>(p); }
#else
template <class T, int N> GF_INLINE gf_vec<T, N> gf_load_early(const T* p) {
  constexpr int size = sizeof(T) * N, words = (size + 3) / 4;
  union { gf_vec<T, N> vec; gf_u32 word[words]; gf_u16 half; } box;
  if (size == 1) asm volatile("ld.volatile.global.u8 %0, [%1];" : "=r"(box.word[0]) : "l"(p));
  if (size == 2) asm volatile("ld.volatile.global.u16 %0, [%1];" : "=h"(box.half) : "l"(p));
  if (size == 4) asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(box.word[0]) : "l"(p));
  if (size == 8) asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(box.word[0]), "=r"(box.word[words > 1]) : "l"(p));
  GF_UNROLL
  for (int w = 0; w + 3 < words; w += 4)
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(box.word[w]), "=r"(box.word[w + 1]), "=r"(box.word[w + 2]), "=r"(box.word[w + 3])
                 : "l"(p + w * 4 / sizeof(T)));
  return box.vec;
}
#endif

// --- conversions between storage and compute types ------------------------------------------------------------------

GF_INLINE float gf_bits_float(gf_u32 b) { return __uint_as_float(b); }
GF_INLINE gf_u32 gf_float_bits(float x) { return __float_as_uint(x); }

#ifdef GF_HOST
GF_INLINE float gf_half_to_float(gf_u16 h) {
  const gf_u32 sign = (gf_u32)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return gf_bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return gf_bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -tiny : tiny;
}
GF_INLINE gf_u16 gf_float_to_half(float x) {
  const gf_u32 b = gf_float_bits(x), sign = (b >> 16) & 0x8000, magnitude = b & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (gf_u16)(sign | 0x7fff);
  if (magnitude >= 0x477ff000u) return (gf_u16)(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000u) {                                  // below the smallest normal: let float addition round
    const float shifted = gf_bits_float(magnitude) + 0.5f;
    return (gf_u16)(sign | (gf_float_bits(shifted) - 0x3f000000u));
  }
  const gf_u32 odd = (magnitude >> 13) & 1;
  return (gf_u16)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}
#else
GF_INLINE float gf_half_to_float(gf_u16 h) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)); return x; }
GF_INLINE gf_u16 gf_float_to_half(float x) { gf_u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
#endif
#if defined(GF_HOST) || __CUDA_ARCH__ < 800  // Turing lacks the instruction
GF_INLINE gf_u16 gf_float_to_bfloat(float x) {
  const gf_u32 b = gf_float_bits(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (gf_u16)((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}
#else
GF_INLINE gf_u16 gf_float_to_bfloat(float x) { gf_u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
#endif
template <int M, int BIAS, int KIND> GF_INLINE float gf_float8_to_float(gf_u8 b) {
  const gf_u32 sign = (gf_u32)(b & 0x80) << 24, magnitude = b & 0x7f, ones = 0x7f >> M;
  if (KIND == 1 && magnitude == 0x7f) return gf_bits_float(sign | 0x7fc00000u);
  if (KIND == 2 && b == 0x80) return gf_bits_float(0x7fc00000u);
  if (KIND == 0 && (magnitude >> M) == ones) return gf_bits_float(sign | 0x7f800000u | ((magnitude & ((1 << M) - 1)) << (23 - M)));
  if (magnitude >> M) return gf_bits_float(sign | ((magnitude << (23 - M)) + ((gf_u32)(127 - BIAS) << 23)));
  const float tiny = (float)magnitude * gf_bits_float((gf_u32)(128 - BIAS - M) << 23);  // times 2^(1 - BIAS - M)
  return sign ? -tiny : tiny;
}
template <int M, int BIAS, int KIND> GF_INLINE gf_u8 gf_float_to_float8(float x) {
  const gf_u32 b = gf_float_bits(x), sign = (b >> 24) & 0x80, magnitude = b & 0x7fffffffu;
  const gf_u32 nan = KIND == 2 ? 0x80 : KIND == 1 ? sign | 0x7f : sign | 0x7e, over = KIND == 0 ? sign | 0x7c : nan;
  if (magnitude > 0x7f800000u) return (gf_u8)nan;
  gf_u32 code;
  if (magnitude < (gf_u32)(128 - BIAS) << 23) {  // below the smallest normal: let float addition round
    const gf_u32 anchor = (gf_u32)(151 - BIAS - M) << 23;
    code = gf_float_bits(gf_bits_float(magnitude) + gf_bits_float(anchor)) - anchor;
  } else {
    const gf_u32 odd = (magnitude >> (23 - M)) & 1;
    code = (magnitude - ((gf_u32)(127 - BIAS) << 23) + (1u << (22 - M)) - 1 + odd) >> (23 - M);
  }
  if (code > (KIND == 0 ? 0x7bu : KIND == 1 ? 0x7eu : 0x7fu)) return (gf_u8)over;
  return (gf_u8)(KIND == 2 && code == 0 ? 0 : sign | code);
}
// A double rounded to odd: a second rounding to 16 bits then gives what one rounding would.
GF_INLINE float gf_round_to_odd(double x) {
  const float near = (float)x;
  gf_u32 b = gf_float_bits(near);
  if ((double)near == x || x != x || (b & 0x7fffffffu) == 0x7f800000u) return near;
  const bool up = x < 0 ? (double)near < x : (double)near > x;  // rounded away from zero
  if (up) b -= 1;
  return gf_bits_float(b | 1);
}

// gf_up: a stored value as its compute type. gf_down<S>: back, rounding to nearest even.
template <class T> GF_INLINE T gf_up(T x) { return x; }
GF_INLINE float gf_up(gf_f16 x) { return gf_half_to_float(x.bits); }
GF_INLINE float gf_up(gf_bf16 x) { return gf_bits_float((gf_u32)x.bits << 16); }
template <int M, int B, int K> GF_INLINE float gf_up(gf_float8<M, B, K> x) { return gf_float8_to_float<M, B, K>(x.bits); }
template <class S> struct gf_storage { template <class T> static GF_INLINE S down(T x) { return (S)x; } };
template <> struct gf_storage<gf_f16> { static GF_INLINE gf_f16 down(float x) { return gf_f16{gf_float_to_half(x)}; } };
template <> struct gf_storage<gf_bf16> { static GF_INLINE gf_bf16 down(float x) { return gf_bf16{gf_float_to_bfloat(x)}; } };
template <int M, int B, int K> struct gf_storage<gf_float8<M, B, K>> {
  static GF_INLINE gf_float8<M, B, K> down(float x) { return gf_float8<M, B, K>{gf_float_to_float8<M, B, K>(x)}; }
};
template <class S, class T> GF_INLINE S gf_down(T x) { return gf_storage<S>::down(x); }
template <class S> GF_INLINE float gf_round(float x) { return gf_up(gf_down<S>(x)); }

// gf_cast<To>: ONNX Cast between compute types. Floats to narrow integers truncate to 32 bits first, as processors do.
template <class To> struct gf_caster {
  template <class From> static GF_INLINE To cast(From x) { return (To)x; }
  static GF_INLINE To cast(float x) { return sizeof(To) < 4 ? (To)(gf_i32)x : (To)(gf_i64)x; }
  static GF_INLINE To cast(double x) { return sizeof(To) < 4 ? (To)(gf_i32)x : (To)(gf_i64)x; }
};
template <> struct gf_caster<gf_i32> { template <class From> static GF_INLINE gf_i32 cast(From x) { return (gf_i32)x; } };
template <> struct gf_caster<gf_u64> {
  template <class From> static GF_INLINE gf_u64 cast(From x) { return (gf_u64)x; }
};
template <> struct gf_caster<float> { template <class From> static GF_INLINE float cast(From x) { return (float)x; } };
template <> struct gf_caster<double> { template <class From> static GF_INLINE double cast(From x) { return (double)x; } };
template <> struct gf_caster<gf_bool> { template <class From> static GF_INLINE gf_bool cast(From x) { return x != (From)0; } };
template <> struct gf_caster<gf_f16> {  // to a small float: the value in float, rounded once
  template <class From> static GF_INLINE float cast(From x) { return gf_round<gf_f16>((float)x); }
  static GF_INLINE float cast(double x) { return gf_round<gf_f16>(gf_round_to_odd(x)); }
};
template <> struct gf_caster<gf_bf16> {
  template <class From> static GF_INLINE float cast(From x) { return gf_round<gf_bf16>((float)x); }
  static GF_INLINE float cast(double x) { return gf_round<gf_bf16>(gf_round_to_odd(x)); }
  static GF_INLINE float cast(gf_i32 x) { return gf_round<gf_bf16>(gf_round_to_odd((double)x)); }
  static GF_INLINE float cast(gf_u32 x) { return gf_round<gf_bf16>(gf_round_to_odd((double)x)); }
};
template <int M, int B, int K> struct gf_caster<gf_float8<M, B, K>> {
  template <class From> static GF_INLINE float cast(From x) { return gf_round<gf_float8<M, B, K>>((float)x); }
  static GF_INLINE float cast(double x) { return gf_round<gf_float8<M, B, K>>(gf_round_to_odd(x)); }
};
template <class To, class From> GF_INLINE auto gf_cast(From x) { return gf_caster<To>::cast(x); }

// --- integers: wrap, truncate, never trap -----------------------------------------------------------------------------

template <class T> struct gf_unsigned { typedef gf_u32 type; };
template <> struct gf_unsigned<gf_i64> { typedef gf_u64 type; };
template <> struct gf_unsigned<gf_u64> { typedef gf_u64 type; };
template <class T> GF_INLINE T gf_add(T a, T b) { typedef typename gf_unsigned<T>::type U; return (T)((U)a + (U)b); }
template <class T> GF_INLINE T gf_sub(T a, T b) { typedef typename gf_unsigned<T>::type U; return (T)((U)a - (U)b); }
template <class T> GF_INLINE T gf_mul(T a, T b) { typedef typename gf_unsigned<T>::type U; return (T)((U)a * (U)b); }
GF_INLINE float gf_add(float a, float b) { return a + b; }
GF_INLINE double gf_add(double a, double b) { return a + b; }
GF_INLINE float gf_mul(float a, float b) { return a * b; }
GF_INLINE double gf_mul(double a, double b) { return a * b; }
template <class T> GF_INLINE T gf_neg(T a) { return gf_sub<T>((T)0, a); }
template <class T> GF_INLINE T gf_div(T a, T b) {  // the lowest value by -1 wraps, by 0 gives a
  if (b == (T)0) return a;
  if ((T)-1 < (T)0 && b == (T)-1) return gf_neg<T>(a);
  return (T)(a / b);
}
template <class T> GF_INLINE T gf_fmod(T a, T b) {  // remainder with the sign of a; by 0 and -1 gives 0
  if (b == (T)0 || ((T)-1 < (T)0 && b == (T)-1)) return (T)0;
  return (T)(a % b);
}
GF_INLINE float gf_fmod(float a, float b) { return fmodf(a, b); }
GF_INLINE double gf_fmod(double a, double b) { return fmod(a, b); }
template <class T> GF_INLINE T gf_mod(T a, T b) {  // remainder with the sign of b
  const T r = gf_fmod(a, b);
  return (r != (T)0 && (r < (T)0) != (b < (T)0)) ? (T)(r + b) : r;
}
GF_INLINE float gf_mod(float a, float b) {
  const float r = fmodf(a, b);
  if (r != 0.0f) return ((r < 0.0f) != (b < 0.0f)) ? r + b : r;
  return r == 0.0f ? copysignf(0.0f, b) : r;
}
GF_INLINE double gf_mod(double a, double b) {
  const double r = fmod(a, b);
  if (r != 0.0) return ((r < 0.0) != (b < 0.0)) ? r + b : r;
  return r == 0.0 ? copysign(0.0, b) : r;
}
template <class T> GF_INLINE T gf_pow(T a, T b) {  // by squaring; a negative exponent leaves only 1, -1 and 0
  if (b < (T)0) return a == (T)1 ? (T)1 : (a == (T)-1 && (T)-1 < (T)0) ? ((b & 1) ? (T)-1 : (T)1) : (T)0;
  T result = (T)1;
  while (b != (T)0) {
    if (b & 1) result = gf_mul<T>(result, a);
    a = gf_mul<T>(a, a);
    b = (T)(b >> 1);
  }
  return result;
}
GF_INLINE float gf_pow(float a, float b) { return powf(a, b); }
GF_INLINE double gf_pow(double a, double b) { return pow(a, b); }
template <class T> GF_INLINE T gf_shl(T a, T b) { return b >= (T)(sizeof(T) * 8) ? (T)0 : (T)(a << b); }
template <class T> GF_INLINE T gf_shr(T a, T b) { return b >= (T)(sizeof(T) * 8) ? (T)0 : (T)(a >> b); }

// --- comparisons that let NaN through -----------------------------------------------------------------------------------

template <class T> GF_INLINE T gf_min(T a, T b) { return b < a ? b : a; }
template <class T> GF_INLINE T gf_max(T a, T b) { return a < b ? b : a; }
#if defined(GF_HOST) || __CUDA_ARCH__ < 800  // as above
GF_INLINE float gf_min(float a, float b) { return (a != a || b != b) ? a + b : b < a ? b : a; }
GF_INLINE float gf_max(float a, float b) { return (a != a || b != b) ? a + b : a < b ? b : a; }
#else  // one instruction: FMNMX.NAN
GF_INLINE float gf_min(float a, float b) { float x; asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b)); return x; }
GF_INLINE float gf_max(float a, float b) { float x; asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b)); return x; }
#endif
GF_INLINE double gf_min(double a, double b) { return (a != a || b != b) ? a + b : b < a ? b : a; }
GF_INLINE double gf_max(double a, double b) { return (a != a || b != b) ? a + b : a < b ? b : a; }
template <class T> GF_INLINE T gf_abs(T a) { return a < (T)0 ? gf_neg<T>(a) : a; }
GF_INLINE float gf_abs(float a) { return fabsf(a); }
GF_INLINE double gf_abs(double a) { return fabs(a); }
template <class T> GF_INLINE T gf_sign(T a) { return (T)(((T)0 < a) - (a < (T)0)); }
GF_INLINE float gf_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
GF_INLINE double gf_sign(double a) { return a > 0.0 ? 1.0 : a < 0.0 ? -1.0 : a; }
GF_INLINE gf_bool gf_isnan(float a) { return a != a; }
GF_INLINE gf_bool gf_isnan(double a) { return a != a; }
GF_INLINE gf_bool gf_isposinf(float a) { return gf_float_bits(a) == 0x7f800000u; }
GF_INLINE gf_bool gf_isneginf(float a) { return gf_float_bits(a) == 0xff800000u; }
GF_INLINE gf_bool gf_isposinf(double a) { return a > 1.7976931348623157e308; }
GF_INLINE gf_bool gf_isneginf(double a) { return a < -1.7976931348623157e308; }

#define GF_MATH(name) \
  GF_INLINE float gf_##name(float a) { return name##f(a); } \
  GF_INLINE double gf_##name(double a) { return name(a); }
GF_MATH(floor) GF_MATH(ceil) GF_MATH(rint) GF_MATH(trunc) GF_MATH(sqrt) GF_MATH(exp) GF_MATH(log) GF_MATH(log1p) GF_MATH(expm1)
GF_MATH(erf) GF_MATH(sin) GF_MATH(cos) GF_MATH(tan) GF_MATH(asin) GF_MATH(acos) GF_MATH(atan)
GF_MATH(sinh) GF_MATH(cosh) GF_MATH(tanh) GF_MATH(asinh) GF_MATH(acosh) GF_MATH(atanh)
#undef GF_MATH

// Floor division and remainder of an index that may be negative; the divisor is positive.
template <class I> GF_INLINE I gf_floordiv(I a, I b) { const I q = a / b; return a % b < 0 ? q - 1 : q; }
template <class I> GF_INLINE I gf_floormod(I a, I b) { const I r = a % b; return r < 0 ? r + b : r; }
GF_INLINE gf_i32 gf_quot(gf_i32 a, gf_i32 b) { return (gf_i32)((gf_u32)a / (gf_u32)b); }  // of a non-negative index
GF_INLINE gf_i64 gf_quot(gf_i64 a, gf_i64 b) { return (gf_i64)((gf_u64)a / (gf_u64)b); }
GF_INLINE gf_i32 gf_rem(gf_i32 a, gf_i32 b) { return (gf_i32)((gf_u32)a % (gf_u32)b); }
GF_INLINE gf_i64 gf_rem(gf_i64 a, gf_i64 b) { return (gf_i64)((gf_u64)a % (gf_u64)b); }
template <class I> GF_INLINE I gf_wrap(I a, I b) { return a < b ? a : a - b; }  // a % b for a below 2b
template <class I> GF_INLINE I gf_carry(I a, I b) { return a < b ? 0 : 1; }      // a / b for a below 2b
template <class I> GF_INLINE I gf_larger(I a, I b) { return a < b ? b : a; }
template <class I> GF_INLINE I gf_smaller(I a, I b) { return b < a ? b : a; }

// --- division of whole vectors: no branch an element -----------------------------------------------------------------
// The usual case is computed for all lanes; where one of them needs care, `rare` is set and the vector is divided again.

// 1 / b, correctly rounded while b and 1 / b are normal.
GF_INLINE float gf_rcp_near(float b, bool& rare) {
#ifdef GF_HOST
  return 1.0f / b;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
  const float size = fabsf(b);
  rare |= !(size > 0x1p-126f && size < 0x1p126f);
  return fmaf(y, fmaf(-b, y, 1.0f), y);
#endif
}
// x / b where y is 1 / b, rounded: two corrections by FMA give the correctly rounded quotient (Markstein) while nothing
// overflows or is denormal; zeros keep their sign.
GF_INLINE float gf_div_near(float x, float b, float y, bool& rare) {
  const float first = x * y;
  const float second = fmaf(fmaf(-b, first, x), y, first);
  const float third = fmaf(fmaf(-b, second, x), y, second);
  const float size = fabsf(x), by = fabsf(b);
  const bool normal = size > 0x1p-60f && size < 0x1p60f;
  rare |= !((normal || x == 0.0f) && by > 0x1p-30f && by < 0x1p30f);
  return normal ? third : first;
}
GF_INLINE float gf_rcp(float b) {
  bool rare = false;
  const float near = gf_rcp_near(b, rare);
  return rare ? 1.0f / b : near;
}
GF_INLINE float gf_div_by(float x, float b, float y) {
  bool rare = false;
  const float near = gf_div_near(x, b, y, rare);
  return rare ? x / b : near;
}

// --- for values of 16 bits: relative error below 2^-17, far under the 2^-9 or 2^-12 of their rounding -------------------

#ifdef GF_HOST
GF_INLINE float gf_exp_small(float x) { return expf(x); }
GF_INLINE float gf_rcp_small(float x) { return 1.0f / x; }
#else
GF_INLINE float gf_exp_small(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896341f));
  return y;
}
GF_INLINE float gf_rcp_small(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#endif

// --- folding a row over its team of threads ---------------------------------------------------------------------------

struct gf_fold_sum { template <class T> static GF_INLINE T apply(T a, T b) { return gf_add(a, b); } };
struct gf_fold_prod { template <class T> static GF_INLINE T apply(T a, T b) { return gf_mul(a, b); } };
struct gf_fold_max { template <class T> static GF_INLINE T apply(T a, T b) { return gf_max(a, b); } };
struct gf_fold_min { template <class T> static GF_INLINE T apply(T a, T b) { return gf_min(a, b); } };

// A candidate of argmax/argmin; an index of -1 stands for none. NaN wins, as in NumPy; ties go to the first or last index.
template <class T> struct gf_arg { T value; gf_i64 index; };
template <bool Max, bool Last> struct gf_fold_arg {
  template <class T> static GF_INLINE gf_arg<T> apply(gf_arg<T> a, gf_arg<T> b) {
    if (b.index < 0) return a;
    if (a.index < 0) return b;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool tie = (a_nan && b_nan) || a.value == b.value;
    const bool better = tie ? (Last ? b.index > a.index : b.index < a.index)
                            : b_nan || (!a_nan && (Max ? a.value < b.value : b.value < a.value));
    return better ? b : a;
  }
};

// A value moved between threads word by word, as `move` moves one.
template <class T, class Move> GF_INLINE T gf_by_words(T x, Move move) {
  union { T value; gf_u32 word[(sizeof(T) + 3) / 4]; } box;
  for (int w = 0; w < (int)((sizeof(T) + 3) / 4); ++w) box.word[w] = 0;
  box.value = x;
  GF_UNROLL
  for (int w = 0; w < (int)((sizeof(T) + 3) / 4); ++w) box.word[w] = move(box.word[w]);
  return box.value;
}

// A value of another thread of the warp: `source` is its lane.
template <class T> GF_INLINE T gf_shuffle(T x, int source) {
  return gf_by_words(x, [source](gf_u32 word) { return __shfl_sync(0xffffffffu, word, source); });
}
template <class T> GF_INLINE T gf_beside(T x, int by) { return gf_shuffle(x, (threadIdx.x + by) & 31); }
// What a thread knows of its elements, which come in vectors of W. All are taken from its first one (if that is no giant), so that no
// digits go into what they have in common: the sum and the mean of the rest, and the sum of squares about that mean.
template <class T, int W> struct gf_moments {
  T centre = (T)0, rest = (T)0, mean = (T)0, squares = (T)0;
  int vectors = 0;
  static GF_INLINE T add_up(const T (&x)[W]) {
    T part[4] = {x[0], x[1], x[2], x[3]};  // short chains of dependent additions
    GF_UNROLL
    for (int j = 4; j < W; ++j) part[j % 4] += x[j];
    return (part[0] + part[1]) + (part[2] + part[3]);
  }
  GF_INLINE void add(T (&x)[W], int before) {  // after so many other vectors
    if (before == 0) centre = x[0] < (T)1e30f && x[0] > (T)-1e30f ? x[0] : (T)0;
    GF_UNROLL
    for (int j = 0; j < W; ++j) x[j] -= centre;
    const T total = add_up(x), own = total * ((T)1 / W), away = own - mean, share = (T)1 / (T)(before + 1);
    GF_UNROLL
    for (int j = 0; j < W; ++j) { x[j] -= own; x[j] *= x[j]; }
    squares = before ? squares + (add_up(x) + away * away * ((T)(W * before) * share)) : add_up(x);
    mean = before ? mean + away * share : own;
    rest += total;
    vectors = before + 1;
  }
  GF_INLINE T sum() const { return (T)(W * vectors) * centre + rest; }
  GF_INLINE T squares_about(T m) const {
    const T away = (centre - m) + mean;
    return vectors ? squares + (T)(W * vectors) * (away * away) : (T)0;
  }
};

template <class T> GF_INLINE T gf_shuffle_xor(T x, int mask) {
  return gf_by_words(x, [mask](gf_u32 word) { return __shfl_xor_sync(0xffffffffu, word, mask); });
}

// The fold of every thread's x over a team of `Team` threads, a power of 2; all of them get it. Teams of more than a warp are
// whole blocks and go through `scratch` (one element a warp), which nothing else may use in the same launch: one barrier will do.
template <int Team, class Fold, class T> GF_INLINE T gf_team_fold(T x, T* scratch) {
  GF_UNROLL
  for (int mask = (Team < 32 ? Team : 32) / 2; mask > 0; mask /= 2) x = Fold::apply(x, gf_shuffle_xor(x, mask));
  if (Team > 32) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) scratch[warp] = x;
    __syncthreads();
    constexpr int warps = Team / 32, ways = warps < 4 ? (warps < 1 ? 1 : warps) : 4;  // short chains of dependent folds
    T part[ways];
    GF_UNROLL
    for (int w = 0; w < ways; ++w) part[w] = scratch[w];
    GF_UNROLL
    for (int w = ways; w < warps; ++w) part[w % ways] = Fold::apply(part[w % ways], scratch[w]);
    x = part[0];
    GF_UNROLL
    for (int w = 1; w < ways; ++w) x = Fold::apply(x, part[w]);
  }
  return x;
}

// Vectors of floats and of bfloat16, as wide as the CPU's: one set of names for AVX-512 and for AVX2 with FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace simsd {

constexpr long MOST_HEAD = 512;  // dimensions of a head

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

using Vector = __m512;
constexpr int LANES = 16;

inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector all(float x) { return _mm512_set1_ps(x); }
inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
inline Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
inline float first(Vector x) { return _mm512_cvtss_f32(x); }
inline Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
inline Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
inline Vector most(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline Vector least(Vector a, Vector b) { return _mm512_min_ps(a, b); }
inline Vector nearest(Vector x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n of whole numbers -126 .. 127
inline Vector power(Vector n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
// y, but 0 where x < low
inline Vector zero_below(Vector x, Vector low, Vector y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), y);
}
inline Vector minus_size(Vector x) { return _mm512_or_ps(x, all(-0.0f)); }
inline Vector choose_negative(Vector x, Vector negative, Vector other) {
  return _mm512_mask_mov_ps(other, _mm512_movepi32_mask(_mm512_castps_si512(x)), negative);
}
// The first `count` numbers, then zeros.
inline Vector some(const float* p, int count) { return _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p); }
inline Vector some(const uint16_t* p, int count) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), p)), 16));
}
inline void transpose(Vector* r) {
  Vector t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto low = [](Vector a, Vector b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](Vector a, Vector b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  // r[i + c] now holds column c of each lane of four, of rows i .. i + 3
  for (int i = 0; i < 16; i += 4) {
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; c++) {
    const Vector a = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88), b = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
    const Vector d = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88), e = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
    t[c] = _mm512_shuffle_f32x4(a, d, 0x88);
    t[c + 8] = _mm512_shuffle_f32x4(a, d, 0xdd);
    t[c + 4] = _mm512_shuffle_f32x4(b, e, 0x88);
    t[c + 12] = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
  for (int i = 0; i < 16; i++) r[i] = t[i];
}
inline Vector widened(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}

#elif defined(__AVX2__) && defined(__FMA__)

using Vector = __m256;
constexpr int LANES = 8;

inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector all(float x) { return _mm256_set1_ps(x); }
inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vector x) { _mm256_storeu_ps(p, x); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline float first(Vector x) { return _mm256_cvtss_f32(x); }
inline Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
inline Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
inline Vector most(Vector a, Vector b) { return _mm256_max_ps(a, b); }
inline Vector least(Vector a, Vector b) { return _mm256_min_ps(a, b); }
inline Vector nearest(Vector x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vector power(Vector n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Vector zero_below(Vector x, Vector low, Vector y) {
  return _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_NLT_UQ), y);
}
inline Vector minus_size(Vector x) { return _mm256_or_ps(x, all(-0.0f)); }
inline Vector choose_negative(Vector x, Vector negative, Vector other) { return _mm256_blendv_ps(other, negative, x); }
inline Vector some(const float* p, int count) {
  float lanes[8] = {};
  std::memcpy(lanes, p, 4 * count);
  return load(lanes);
}
inline Vector some(const uint16_t* p, int count) {
  float lanes[8] = {};
  for (int i = 0; i < count; i++) {
    const uint32_t bits = (uint32_t)p[i] << 16;
    std::memcpy(lanes + i, &bits, 4);
  }
  return load(lanes);
}
inline void transpose(Vector* r) {
  Vector t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int c = 0; c < 4; c++) {
    t[c] = _mm256_permute2f128_ps(r[c], r[c + 4], 0x20);
    t[c + 4] = _mm256_permute2f128_ps(r[c], r[c + 4], 0x31);
  }
  for (int i = 0; i < 8; i++) r[i] = t[i];
}
inline Vector widened(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}

#else
#error "neither AVX-512 nor AVX2 with FMA"
#endif

inline float widen(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

// To the nearest bfloat16, to the even one of two; NaN stays NaN.
inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// Numbers as they are stored: float, or uint16_t that holds a bfloat16.
inline float value(float x) { return x; }
inline float value(uint16_t x) { return widen(x); }
inline Vector values(const float* p) { return load(p); }
inline Vector values(const uint16_t* p) { return widened(p); }
inline void put(float* p, float x) { *p = x; }
inline void put(uint16_t* p, float x) { *p = narrow(x); }

inline void put(float* p, Vector x) { store(p, x); }
inline void put(uint16_t* p, Vector x) {
  float lanes[LANES];
  store(lanes, x);
  for (int i = 0; i < LANES; i++) p[i] = narrow(lanes[i]);
}

inline float sum(Vector x) {
  float lanes[LANES];
  store(lanes, x);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
}

}  // namespace simsd

// What happens to a row between two products: norms, rotary positions, the gate.
#pragma once

#include <cmath>

#include "vectors.h"

namespace simsd {

// e^x for x <= 88, to two units in the last place. Below -87, where it would be denormal, 0, which is what hidden
// slots weigh; or `down_to_the_last`, the denormal number.
template <bool down_to_the_last = false>
inline Vector exponential(Vector x) {
  const Vector low = all(down_to_the_last ? -104.0f : -87.0f);
  const Vector clipped = least(all(88.0f), most(low, x));  // the second one where either is NaN: it stays
  const Vector n = nearest(mul(clipped, all(1.44269504f)));
  Vector r = fma(n, all(-0.693359375f), clipped);  // ln 2 in two parts: n times the first is exact
  r = fma(n, all(2.12194440e-4f), r);
  Vector p = all(1.0f / 5040);  // the series: |r| <= ln 2 / 2, and what is left out is below 6e-9
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, r, all(c));
  if (!down_to_the_last) return zero_below(x, low, mul(p, power(n)));
  const Vector half = nearest(mul(n, all(0.5f)));  // 2^n in two factors, neither of them denormal
  return zero_below(x, low, mul(mul(p, power(half)), power(sub(n, half))));
}

// What x is multiplied by, beside the weight times sqrt(size), to be normed: 1 / sqrt(sum(x^2) + size * eps)
template <class N>
float norm_scale(const N* x, float eps, long size) {
  Vector squares = zero();
  long i = 0;
  for (; i + LANES <= size; i += LANES) squares = fma(values(x + i), values(x + i), squares);
  float total = sum(squares);
  for (; i < size; i++) total += value(x[i]) * value(x[i]);
  return 1.0f / std::sqrt(total + size * eps);
}

// weight * x / sqrt(mean(x^2) + eps); scaled: weight * sqrt(size)
template <class N>
void norm(const N* x, const float* scaled, float eps, long size, N* y) {
  const float scale = norm_scale(x, eps, size);
  long i = 0;
  for (; i + LANES <= size; i += LANES) put(y + i, mul(mul(values(x + i), all(scale)), load(scaled + i)));
  for (; i < size; i++) put(y + i, value(x[i]) * scale * scaled[i]);
}

// A head, normed and turned: y = x cos + roll(x, size / 2) sin. turns: [2][size], cosines and sines with their sign.
template <class N>
void turn(const N* x, const float* scaled, float eps, const N* turns, long size, float* y) {
  const float scale = norm_scale(x, eps, size);
  float normed[MOST_HEAD];
  for (long j = 0; j < size; j++) normed[j] = value(x[j]) * (scale * scaled[j]);
  const long half = size / 2;
  for (long j = 0; j < half; j++) y[j] = normed[j] * value(turns[j]) + normed[j + half] * value(turns[size + j]);
  for (long j = half; j < size; j++) y[j] = normed[j] * value(turns[j]) + normed[j - half] * value(turns[size + j]);
}

// silu(gate) * up of a row [2 * size], the gate first
template <class N>
void gate(const N* x, long size, N* y) {
  long i = 0;
  const auto one = [](Vector g, Vector u) {
    // g / (1 + e^-g), by the exponential of -|g|, which does not overflow
    const Vector e = exponential<true>(minus_size(g));
    const Vector upper = div(all(1.0f), add(all(1.0f), e));
    return mul(mul(g, choose_negative(g, mul(e, upper), upper)), u);
  };
  for (; i + LANES <= size; i += LANES) put(y + i, one(values(x + i), values(x + size + i)));
  if (i < size) {
    const int left = (int)(size - i);
    float lanes[LANES];
    store(lanes, one(some(x + i, left), some(x + size + i, left)));
    for (int j = 0; j < left; j++) put(y + i + j, lanes[j]);
  }
}

}  // namespace simsd

// Attention of some rows over the cached keys and values of one head.
//
// Scores of a row come from one register, over the head's dimensions in order; its weights and the weighted values are
// summed over the slots in order. A slot that the row may not see adds 0 to both. So a row comes out the same to the bit
// wherever hidden slots lie among those that it sees, and whatever rows stand beside it.
#pragma once

#include <algorithm>
#include <limits>

#include "memory.h"
#include "rows.h"
#include "vectors.h"

namespace simsd {

constexpr int SCORED = LANES == 16 ? 8 : 6;  // rows whose scores are made side by side
constexpr int GATHERED = LANES == 16 ? 4 : 2;  // rows whose values are summed side by side
constexpr int WIDTH = 4;  // vectors of values of such a row
constexpr long NEAR = 256;  // slots whose values stay in a near cache while all rows pass

// Scores of M rows for LANES slots. keys: [size][LANES].
template <int M>
void score(const float* q, const float* keys, long size, float* scores, long stride) {
  Vector a[M];
  for (int m = 0; m < M; m++) a[m] = zero();
  for (long d = 0; d < size; d++) {
    const Vector k = load(keys + d * LANES);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) a[m] = fma(all(q[m * size + d]), k, a[m]);
  }
  for (int m = 0; m < M; m++) store(scores + m * stride, a[m]);
}

inline void score_rows(int rows, const float* q, const float* keys, long size, float* scores, long stride) {
  switch (rows) {
    case 1: return score<1>(q, keys, size, scores, stride);
    case 2: return score<2>(q, keys, size, scores, stride);
    case 3: return score<3>(q, keys, size, scores, stride);
    case 4: return score<4>(q, keys, size, scores, stride);
    case 5: return score<5>(q, keys, size, scores, stride);
    case 6: return score<6>(q, keys, size, scores, stride);
    case 7: return score<7>(q, keys, size, scores, stride);
    default: return score<8>(q, keys, size, scores, stride);
  }
}

// Sums over slots of M rows: of weights, and of values in C vectors; where they are not `whole`, the last has `last`
// numbers.
template <int M, int C, bool whole, class N>
void gather(const float* weights, long stride, const N* v, long size, long slots, int last, float* sums,
            float* totals) {
  Vector a[M][C], t[M];
  for (int m = 0; m < M; m++) {
    for (int c = 0; c < C; c++) a[m][c] = load(sums + (m * WIDTH + c) * LANES);
    t[m] = all(totals[m]);
  }
  for (long j = 0; j < slots; j++) {
    Vector x[C];
    for (int c = 0; c < C - 1; c++) x[c] = values(v + j * size + c * LANES);
    const N* end = v + j * size + (C - 1) * LANES;
    x[C - 1] = whole ? values(end) : some(end, last);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const Vector p = all(weights[m * stride + j]);
      t[m] = add(t[m], p);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) a[m][c] = fma(p, x[c], a[m][c]);
    }
  }
  for (int m = 0; m < M; m++) {
    for (int c = 0; c < C; c++) store(sums + (m * WIDTH + c) * LANES, a[m][c]);
    totals[m] = first(t[m]);
  }
}

template <int M, class N>
void gather_wide(int width, const float* weights, long stride, const N* v, long size, long slots, int last,
                 float* sums, float* totals) {
  const auto of = [&](auto whole, auto part) {
    return last == LANES ? whole(weights, stride, v, size, slots, last, sums, totals)
                         : part(weights, stride, v, size, slots, last, sums, totals);
  };
  switch (width) {
    case 1: return of(gather<M, 1, true, N>, gather<M, 1, false, N>);
    case 2: return of(gather<M, 2, true, N>, gather<M, 2, false, N>);
    case 3: return of(gather<M, 3, true, N>, gather<M, 3, false, N>);
    default: return of(gather<M, 4, true, N>, gather<M, 4, false, N>);
  }
}

template <class N>
void gather_rows(int rows, int width, const float* weights, long stride, const N* v, long size, long slots, int last,
                 float* sums, float* totals) {
  switch (rows) {
    case 1: return gather_wide<1>(width, weights, stride, v, size, slots, last, sums, totals);
    case 2: return gather_wide<2>(width, weights, stride, v, size, slots, last, sums, totals);
    case 3: return gather_wide<3>(width, weights, stride, v, size, slots, last, sums, totals);
    default: return gather_wide<4>(width, weights, stride, v, size, slots, last, sums, totals);
  }
}

// Scores [rows][stride] to weights: e^(score - the row's largest); those beyond `slots` to 0.
inline void weigh(float* scores, long rows, long stride, long slots) {
  for (long r = 0; r < rows; r++) {
    float* s = scores + r * stride;
    for (long j = slots; j < stride; j++) s[j] = -std::numeric_limits<float>::infinity();
    Vector largest = load(s);
    for (long j = LANES; j < stride; j += LANES) largest = most(largest, load(s + j));
    float lanes[LANES];
    store(lanes, largest);
    const Vector top = all(*std::max_element(lanes, lanes + LANES));
    for (long j = 0; j < stride; j += LANES) store(s + j, exponential(sub(load(s + j), top)));
  }
}

template <class N>
void fetch(const N* from, long numbers) {
  const char* p = (const char*)from;
  for (long i = 0; i < numbers * (long)sizeof(N); i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
}

// softmax(q k^T + bias) v. q: [rows][size], already divided by sqrt(size). k, v: [slots][size]. bias: row r of it is
// that of row r % biases, `slots` numbers each; or null. y: [rows][size]. False without memory.
template <class N>
bool attend(const float* q, const N* k, const N* v, const N* bias, long biases, long first_row,
            long rows, long slots, long size, float* y) {
  const long stride = (slots + LANES - 1) / LANES * LANES;
  float* scores = kept<SCORES, float>(rows * stride);
  float* sums = kept<SUMS, float>(rows * (WIDTH * LANES + 1));
  if (!scores || !sums) return false;
  alignas(64) float keys[MOST_HEAD * LANES];
  for (long j = 0; j < slots; j += LANES) {
    const int count = (int)std::min<long>(LANES, slots - j);
    fetch(v + j * size, count * size);  // on the way, what the second half will read
    if (j + 2 * LANES < slots) fetch(k + (j + 2 * LANES) * size, LANES * size);
    for (long d = 0; d < size; d += LANES) {
      const int part = (int)std::min<long>(LANES, size - d);
      Vector lines[LANES];
      for (int i = 0; i < LANES; i++)
        lines[i] = i >= count ? zero() : part == LANES ? values(k + (j + i) * size + d) : some(k + (j + i) * size + d, part);
      transpose(lines);
      for (int i = 0; i < part; i++) store(keys + (d + i) * LANES, lines[i]);
    }
    for (long r = 0; r < rows; r += SCORED)
      score_rows((int)std::min<long>(SCORED, rows - r), q + r * size, keys, size, scores + r * stride + j, stride);
  }
  if (bias)
    for (long r = 0; r < rows; r++) {
      const N* b = bias + (first_row + r) % biases * slots;
      long j = 0;
      for (; j + LANES <= slots; j += LANES) store(scores + r * stride + j, add(load(scores + r * stride + j), values(b + j)));
      for (; j < slots; j++) scores[r * stride + j] += value(b[j]);
    }
  weigh(scores, rows, stride, slots);
  float* totals = sums + rows * WIDTH * LANES;
  for (long d = 0; d < size; d += WIDTH * LANES) {
    const int width = (int)std::min<long>(WIDTH, (size - d + LANES - 1) / LANES);
    const int last = (int)std::min<long>(LANES, size - d - (width - 1) * LANES);
    std::fill(sums, totals + rows, 0.0f);
    for (long j = 0; j < slots; j += NEAR)
      for (long r = 0; r < rows; r += GATHERED)
        gather_rows((int)std::min<long>(GATHERED, rows - r), width, scores + r * stride + j, stride,
                    v + j * size + d, size, std::min<long>(NEAR, slots - j), last, sums + r * WIDTH * LANES, totals + r);
    for (long r = 0; r < rows; r++)
      for (long i = 0; i < std::min<long>(WIDTH * LANES, size - d); i++)
        y[r * size + d + i] = sums[r * WIDTH * LANES + i] / totals[r];
  }
  return true;
}

}  // namespace simsd

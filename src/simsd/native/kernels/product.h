// y = x W^T + b for a few rows x: as fast as the weights can be read, where rows are few enough.
//
// W [n, k] lies in panels of COLUMNS outputs each, [n / COLUMNS][k][COLUMNS], filled up with zeros, so that a product
// reads it once, from its first byte to its last. Rows are taken TILE at a time: their sums stay in registers while a
// stretch of a panel goes by. Every sum of a row runs over k in order, in one register, whatever rows stand beside it and
// however many threads there are: a row comes out the same to the bit.

#pragma once

#include <algorithm>

#include "memory.h"
#include "vectors.h"

namespace simsd {

constexpr int VECTORS = 2;  // a panel's width
constexpr int COLUMNS = VECTORS * LANES;
constexpr int TILE = LANES == 16 ? 12 : 6;  // sums that fit into 32 registers, or 16, beside what is multiplied
constexpr long STRETCH = 512;  // steps of a panel that stay in the second cache while all tiles pass
constexpr long BLOCK = 10 * TILE;  // rows whose sums are kept
constexpr int FEW = 2;  // fewer rows are as fast as memory without being told what comes next

constexpr long GRAIN = 1 << 20;  // multiplications worth a thread, which takes microseconds to start and to wait for

// How many threads are worth it.
inline int team(int threads, long multiplications) {
  return (int)std::max<long>(1, std::min<long>(threads, multiplications / GRAIN));
}

// A dtype's product. A step is what one instruction adds up of k: `depth` numbers. That of bfloat16 takes denormal
// numbers for 0.
struct Float {
  using Number = float;
  using Weight = float;
  using Input = float;
  static constexpr int depth = 1;
  static Input input(const Number* x, long) { return *x; }
  static Vector spread(Input x) { return all(x); }
  static Vector weights(const Weight* w) { return load(w); }
  static Vector step(Vector x, Vector w, Vector sum) { return fma(x, w, sum); }
};

#if defined(__AVX512BF16__) && defined(__AVX512F__)
struct BFloat16 {
  using Number = uint16_t;
  using Weight = uint16_t;
  using Input = uint32_t;  // two numbers
  static constexpr int depth = 2;
  static Input input(const Number* x, long left) { return x[0] | (left > 1 ? (uint32_t)x[1] << 16 : 0); }
  static __m512i spread(Input x) { return _mm512_set1_epi32((int)x); }
  static __m512i weights(const Weight* w) { return _mm512_loadu_si512(w); }
  static Vector step(__m512i x, __m512i w, Vector sum) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
};
#else
struct BFloat16 {
  using Number = uint16_t;
  using Weight = uint16_t;
  using Input = float;
  static constexpr int depth = 1;
  static Input input(const Number* x, long) { return widen(*x); }
  static Vector spread(Input x) { return all(x); }
  static Vector weights(const Weight* w) { return widened(w); }
  static Vector step(Vector x, Vector w, Vector sum) { return fma(x, w, sum); }
};
#endif

// One tile of M rows along a stretch. x: [steps][M]. sums: [M][COLUMNS]. `ahead` is fetched on the way, `fetch` lines
// of it a step.
template <class D, int M>
void tile(const typename D::Input* x, const typename D::Weight* w, long steps, const char* ahead, int fetch,
          float* sums, bool first) {
  Vector a[M][VECTORS];
  for (int m = 0; m < M; m++)
    for (int v = 0; v < VECTORS; v++) a[m][v] = first ? zero() : load(sums + m * COLUMNS + v * LANES);
  for (long i = 0; i < steps; i++) {
    for (int line = 0; line < fetch; line++) _mm_prefetch(ahead + 64 * line, _MM_HINT_T1);
    ahead += 64 * fetch;
    const auto left = D::weights(w), right = D::weights(w + LANES * D::depth);
    w += COLUMNS * D::depth;
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
      const auto one = D::spread(x[m]);
      a[m][0] = D::step(one, left, a[m][0]);
      a[m][1] = D::step(one, right, a[m][1]);
    }
    x += M;
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < VECTORS; v++) store(sums + m * COLUMNS + v * LANES, a[m][v]);
}

template <class D>
using Tile = void (*)(const typename D::Input*, const typename D::Weight*, long, const char*, int, float*, bool);

template <class D>
Tile<D> of_rows(long rows) {
  static constexpr Tile<D> tiles[] = {
      tile<D, 1>, tile<D, 2>, tile<D, 3>, tile<D, 4>, tile<D, 5>, tile<D, 6>,
#if defined(__AVX512F__)
      tile<D, 7>, tile<D, 8>, tile<D, 9>, tile<D, 10>, tile<D, 11>, tile<D, 12>,
#endif
  };
  return tiles[rows - 1];
}

inline long tiles_of(long rows) { return (rows + TILE - 1) / TILE; }

// The rows of a panel's product, out of the sums.
template <class Number>
void finish(const float* sums, const Number* bias, Number* y, long rows, long columns, long n) {
  for (long m = 0; m < rows; m++)
    for (long j = 0; j < columns; j++) put(y + m * n + j, sums[m * COLUMNS + j] + (bias ? value(bias[j]) : 0.0f));
}

template <class D>
void panel(const typename D::Input* x, const typename D::Weight* w, const typename D::Number* bias,
           typename D::Number* y, long rows, long columns, long n, long steps) {
  alignas(64) float sums[BLOCK * COLUMNS];
  const long tiles = tiles_of(rows);
  for (long from = 0; from < tiles; from += BLOCK / TILE) {
    const long to = std::min(from + BLOCK / TILE, tiles), begin = rows * from / tiles, end = rows * to / tiles;
    for (long at = 0; at < steps; at += STRETCH) {
      const long length = std::min(STRETCH, steps - at);
      const char* ahead = (const char*)(w + (at + length) * COLUMNS * D::depth);
      constexpr int lines = COLUMNS * D::depth * (int)sizeof(typename D::Weight) / 64;
      for (long t = from; t < to; t++) {
        const long row = rows * t / tiles, count = rows * (t + 1) / tiles - row;
        // Of what comes next each tile fetches its part: all of it, or half each of two.
        const bool fetches = from == 0 && t < lines && rows >= FEW;
        const int fetch = !fetches ? 0 : tiles == 1 ? lines : 1;
        of_rows<D>(count)(x + row * steps + at * count, w + at * COLUMNS * D::depth, length,
                          ahead + 64 * length * (tiles == 1 ? 0 : t), fetch, sums + (row - begin) * COLUMNS, at == 0);
      }
    }
    finish(sums, bias, y + begin * n, end - begin, columns, n);
  }
}

template <class D>
int product(const typename D::Number* x, const typename D::Weight* packed, const typename D::Number* bias,
            typename D::Number* y, long rows, long n, long k, int threads) {
  if (!rows) return 0;
  threads = team(threads, rows * n * k);
  const long steps = (k + D::depth - 1) / D::depth, tiles = tiles_of(rows), panels = (n + COLUMNS - 1) / COLUMNS;
  // A tile's rows side by side, step by step: each step then reads one line, not one a row.
  auto* tiled = kept<TILED, typename D::Input>(rows * steps);
  if (!tiled) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(static)
    for (long t = 0; t < tiles; t++) {
      const long row = rows * t / tiles, count = rows * (t + 1) / tiles - row;
      for (long m = 0; m < count; m++)
        for (long i = 0; i < steps; i++)
          tiled[row * steps + i * count + m] = D::input(x + (row + m) * k + i * D::depth, k - i * D::depth);
    }
#pragma omp for schedule(static)
    for (long p = 0; p < panels; p++)
      panel<D>(tiled, packed + p * steps * D::depth * COLUMNS, bias ? bias + p * COLUMNS : nullptr, y + p * COLUMNS,
               rows, std::min<long>(COLUMNS, n - p * COLUMNS), n, steps);
  }
  return 0;
}

template <class D>
void pack(const typename D::Number* weight, typename D::Weight* packed, long n, long k, int threads) {
  const long steps = (k + D::depth - 1) / D::depth, panels = (n + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (long p = 0; p < panels; p++)
    for (long i = 0; i < steps; i++)
      for (long j = 0; j < COLUMNS; j++)
        for (long d = 0; d < D::depth; d++) {
          const long row = p * COLUMNS + j, column = i * D::depth + d;
          packed[((p * steps + i) * COLUMNS + j) * D::depth + d] = row < n && column < k ? weight[row * k + column] : 0;
        }
}

// Numbers of a packed weight [n, k].
template <class D>
long packed(long n, long k) {
  return (n + COLUMNS - 1) / COLUMNS * COLUMNS * ((k + D::depth - 1) / D::depth * D::depth);
}

// One product for each group of rows, with weights that lie one behind the other; group g ends before row ends[g].
template <class D>
int grouped(const typename D::Number* x, const typename D::Weight* weights, const long* ends, long groups,
            typename D::Number* y, long n, long k, int threads) {
  for (long g = 0, row = 0; g < groups; row = std::max(row, ends[g]), g++)
    if (ends[g] > row && product<D>(x + row * k, weights + g * packed<D>(n, k), (const typename D::Number*)nullptr,
                                    y + row * n, ends[g] - row, n, k, threads))
      return 1;
  return 0;
}

}  // namespace simsd

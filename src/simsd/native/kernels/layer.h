// The two halves of a layer, each in one call: attention, and the gated MLP.
#pragma once

#include <atomic>

#include "attention.h"
#include "product.h"
#include "rows.h"

namespace simsd {

constexpr long LIGHT = 8;  // multiplications that take as long as a number of a norm, a rotation or a gate
constexpr long TOGETHER = 64;  // rows of one head that a thread takes at once

// As simsd/native/layer.py lays them out.
struct Product {
  const void *weight, *bias;
  long outputs, inputs;
};

struct AttentionWeights {
  const float* norm;
  const float* head_norms;  // [heads + kv_heads][size]
  Product qkv, output;
  double eps, head_eps;
  long heads, kv_heads, size;
};

struct MlpWeights {
  const float* norm;
  Product gate_up, down;
  double eps;
};

// What all layers of a forward have in common.
struct Rows {
  const void* turns;  // [sequences * rows][2][size]
  const long* slots;  // [sequences * rows], or null: from `slot` on
  const void* bias;  // [sequences or 1][rows][length], or null
  long slot, sequences, rows, length;
  long bias_sequence, cache_sequence, cache_head;  // numbers from one to the next; the first is 0 if all share one
  int threads;
};

template <class N>
void norms(const N* x, const float* scaled, double eps, long rows, long size, N* y, int threads) {
  threads = team(threads, rows * size * LIGHT);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (long m = 0; m < rows; m++) norm(x + m * size, scaled, (float)eps, size, y + m * size);
}

template <class N>
void gates(const N* x, long rows, long size, N* y, int threads) {
  threads = team(threads, rows * size * LIGHT);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (long m = 0; m < rows; m++) gate(x + m * 2 * size, size, y + m * size);
}

template <class D>
int multiply(const Product& p, const typename D::Number* x, typename D::Number* y, long rows, int threads) {
  using N = typename D::Number;
  return product<D>(x, (const typename D::Weight*)p.weight, (const N*)p.bias, y, rows, p.outputs, p.inputs, threads);
}

// y = output(attention(norm(x))); the rows' keys and values are stored on the way. x, y: [sequences * rows][hidden].
// keys, values: of this layer, [sequences][kv_heads][capacity][size]. 0, or 1 where there is no memory.
template <class D>
int attention(const AttentionWeights& w, const Rows& of, const typename D::Number* x, typename D::Number* keys,
              typename D::Number* vals, typename D::Number* y) {
  using N = typename D::Number;
  const long count = of.sequences * of.rows, hidden = w.qkv.inputs, both = w.heads + w.kv_heads, size = w.size;
  const long groups = w.heads / w.kv_heads, folded = groups * of.rows;
  N* normed = kept<NORMED, N>(count * hidden);
  N* qkv = kept<PROJECTED, N>(count * w.qkv.outputs);
  float* q = kept<QUERIES, float>(count * w.heads * size);
  N* attended = kept<ATTENDED, N>(count * w.heads * size);
  if (!normed || !qkv || !q || !attended) return 1;
  norms(x, w.norm, w.eps, count, hidden, normed, of.threads);
  if (multiply<D>(w.qkv, normed, qkv, count, of.threads)) return 1;
  const float scale = 1.0f / std::sqrt((float)size);
  int threads = team(of.threads, count * both * size * LIGHT);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (long m = 0; m < count; m++) {
    const long n = m / of.rows, r = m % of.rows, slot = of.slots ? of.slots[m] : of.slot + r;
    const N* row = qkv + m * w.qkv.outputs;
    const N* turns = (const N*)of.turns + m * 2 * size;
    const long stored = n * of.cache_sequence + slot * size;
    float turned[MOST_HEAD];
    for (long h = 0; h < both; h++) {
      turn(row + h * size, w.head_norms + h * size, (float)w.head_eps, turns, size, turned);
      if (h < w.heads) {
        float* to = q + ((n * w.kv_heads + h / groups) * folded + h % groups * of.rows + r) * size;
        for (long i = 0; i < size; i++) to[i] = turned[i] * scale;
      } else {
        N* to = keys + stored + (h - w.heads) * of.cache_head;
        for (long i = 0; i < size; i++) put(to + i, turned[i]);
      }
    }
    for (long h = 0; h < w.kv_heads; h++)
      std::copy_n(row + (both + h) * size, size, vals + stored + h * of.cache_head);
  }
  const long parts = (folded + TOGETHER - 1) / TOGETHER;
  threads = team(of.threads, 2 * count * w.heads * size * of.length);
  std::atomic<bool> failed{false};
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (long unit = 0; unit < of.sequences * w.kv_heads * parts; unit++) {
    const long part = unit % parts, head = unit / parts % w.kv_heads, n = unit / parts / w.kv_heads;
    const long begin = folded * part / parts, end = folded * (part + 1) / parts;
    const long at = n * of.cache_sequence + head * of.cache_head;
    float* rows = q + (n * w.kv_heads + head) * folded * size;
    const N* bias = of.bias ? (const N*)of.bias + n * of.bias_sequence : nullptr;
    if (!attend(rows + begin * size, keys + at, vals + at, bias, of.rows, begin, end - begin, of.length, size,
                rows + begin * size)) {
      failed = true;
      continue;
    }
    for (long f = begin; f < end; f++) {
      N* to = attended + ((n * of.rows + f % of.rows) * w.heads + head * groups + f / of.rows) * size;
      for (long i = 0; i < size; i++) put(to + i, rows[f * size + i]);
    }
  }
  return failed || multiply<D>(w.output, attended, y, count, of.threads);
}

// y = down(silu(gate) * up) of norm(x). x, y: [rows][hidden].
template <class D>
int mlp(const MlpWeights& w, const typename D::Number* x, typename D::Number* y, long rows, int threads) {
  using N = typename D::Number;
  const long hidden = w.gate_up.inputs, inner = w.down.inputs;
  N* normed = kept<NORMED, N>(rows * hidden);
  N* both = kept<INNER, N>(rows * 2 * inner);
  N* gated = kept<GATED, N>(rows * inner);
  if (!normed || !both || !gated) return 1;
  norms(x, w.norm, w.eps, rows, hidden, normed, threads);
  if (multiply<D>(w.gate_up, normed, both, rows, threads)) return 1;
  gates(both, rows, inner, gated, threads);
  return multiply<D>(w.down, gated, y, rows, threads);
}

}  // namespace simsd

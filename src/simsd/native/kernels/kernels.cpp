// What Python calls, for float32 and bfloat16. All arrays are contiguous. 0: done; 1: there was no memory for it.

#include "layer.h"

using namespace simsd;

template <class D>
using NumberOf = typename D::Number;

#define SIMSD_KERNELS(D, suffix)                                                                                       \
  /* numbers of a packed weight [n, k] */                                                                              \
  long simsd_packed_##suffix(long n, long k) { return packed<D>(n, k); }                                               \
  void simsd_pack_##suffix(const NumberOf<D>* weight, NumberOf<D>* to, long n, long k, int threads) {                  \
    pack<D>(weight, to, n, k, threads);                                                                                \
  }                                                                                                                    \
  /* x [rows, k] -> y [rows, n]; bias [n] or null */                                                                   \
  int simsd_product_##suffix(const NumberOf<D>* x, const NumberOf<D>* weight, const NumberOf<D>* bias, NumberOf<D>* y, \
                             long rows, long n, long k, int threads) {                                                 \
    return product<D>(x, weight, bias, y, rows, n, k, threads);                                                        \
  }                                                                                                                    \
  int simsd_grouped_##suffix(const NumberOf<D>* x, const NumberOf<D>* weights, const long* ends, long groups,          \
                             NumberOf<D>* y, long n, long k, int threads) {                                            \
    return grouped<D>(x, weights, ends, groups, y, n, k, threads);                                                     \
  }                                                                                                                    \
  /* weight * x / sqrt(mean(x^2) + eps) for x [rows, size]; scaled: weight * sqrt(size) */                              \
  void simsd_norm_##suffix(const NumberOf<D>* x, const float* scaled, double eps, long rows, long size,                \
                           NumberOf<D>* y, int threads) {                                                              \
    norms(x, scaled, eps, rows, size, y, threads);                                                                     \
  }                                                                                                                    \
  /* silu(gate) * up for x [rows, 2 * size] */                                                                         \
  void simsd_gate_##suffix(const NumberOf<D>* x, long rows, long size, NumberOf<D>* y, int threads) {                  \
    gates(x, rows, size, y, threads);                                                                                  \
  }                                                                                                                    \
  int simsd_attention_##suffix(const AttentionWeights* weights, const Rows* rows, const NumberOf<D>* x,                \
                               NumberOf<D>* keys, NumberOf<D>* values, NumberOf<D>* y) {                               \
    return attention<D>(*weights, *rows, x, keys, values, y);                                                          \
  }                                                                                                                    \
  int simsd_mlp_##suffix(const MlpWeights* weights, const NumberOf<D>* x, NumberOf<D>* y, long rows, int threads) {    \
    return mlp<D>(*weights, x, y, rows, threads);                                                                      \
  }

#pragma GCC visibility push(default)
extern "C" {
SIMSD_KERNELS(Float, f32)
SIMSD_KERNELS(BFloat16, bf16)

// What of the CPU these use.
const char* simsd_vectors_f32() { return LANES == 16 ? "AVX-512" : "AVX2"; }
const char* simsd_vectors_bf16() { return BFloat16::depth == 2 ? "AVX-512 BF16" : simsd_vectors_f32(); }

// Bytes that the threads keep for the next call; those of the calling thread are given back by the second.
long simsd_kept() { return kept_bytes; }
void simsd_release() { release(); }
}  // extern "C"
#pragma GCC visibility pop

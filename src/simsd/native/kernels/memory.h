// Memory that a thread keeps from one call to the next: what is newly touched is slow.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>

namespace simsd {

// What it is for; each has its own.
enum Use { TILED, NORMED, PROJECTED, INNER, GATED, QUERIES, ATTENDED, SCORES, SUMS, USES };

// Of all threads.
inline std::atomic<long> kept_bytes{0};

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;

  void release() {
    std::free(data);
    kept_bytes -= (long)bytes;
    data = nullptr;
    bytes = 0;
  }
  // Whether there is room for so much; what was in it may be lost.
  bool hold(size_t wanted) {
    if (bytes >= wanted) return true;
    release();
    data = std::aligned_alloc(64, wanted);
    if (!data) return false;
    bytes = wanted;
    kept_bytes += (long)wanted;
    return true;
  }
  ~Buffer() { release(); }
};

inline thread_local Buffer buffers[USES];

// Room for so many numbers, or null.
template <Use use, class T>
T* kept(size_t count) {
  const size_t bytes = (count * sizeof(T) + 4096) / 4096 * 4096;
  return buffers[use].hold(bytes) ? (T*)buffers[use].data : nullptr;
}

inline void release() {
  for (Buffer& buffer : buffers) buffer.release();
}

}  // namespace simsd

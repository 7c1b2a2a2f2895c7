// Vectors of numbers in registers, and transposes by them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif
template <typename T, int kLanes>
struct Lanes {
  typedef T Vector __attribute__((vector_size(kLanes * sizeof(T))));
};
template <typename T>
constexpr int kFull = kVectorBytes / sizeof(T);  // lanes of a vector
template <typename T, int kLanes = kFull<T>>
using Vector = typename Lanes<T, kLanes>::Vector;

template <int kLanes, typename T>
inline Vector<T, kLanes> load(const T* from) {
  Vector<T, kLanes> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <typename T>
inline Vector<T> load(const T* from) {
  return load<kFull<T>>(from);
}

template <typename V, typename T>
inline void store(T* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

// Store the first lanes alone: what lies behind belongs to a neighbour.
template <typename T>
inline void store(T* to, Vector<T> v, int64_t valid) {
  if (valid >= kFull<T>) return store(to, v);
  for (int64_t lane = 0; lane < valid; ++lane) to[lane] = v[lane];
}

// a0 b0 a1 b1 ...: of the first halves of two vectors, or of the second ones.
template <typename T>
inline Vector<T> interleave(Vector<T> a, Vector<T> b, bool second) {
  constexpr int64_t lanes = kFull<T>;
#if defined(__clang__)
  Vector<T> mixed;
  for (int64_t i = 0; i < lanes; ++i) mixed[i] = (i % 2 ? b : a)[i / 2 + (second ? lanes / 2 : 0)];
  return mixed;
#else
  decltype(a < b) order;
  for (int64_t i = 0; i < lanes; ++i) order[i] = i / 2 + (second ? lanes / 2 : 0) + (i % 2 ? lanes : 0);
  return __builtin_shuffle(a, b, order);
#endif
}

// Transpose a (height, width) matrix.
template <typename T>
void transpose(int64_t height, int64_t width, const T* from, int64_t from_row, T* to, int64_t to_row) {
  constexpr int lanes = kFull<T>;
  for (int64_t h = 0; h < height; h += lanes)
    for (int64_t w = 0; w < width; w += lanes) {
      if (h + lanes > height || w + lanes > width) {
        for (int64_t j = w; j < std::min(w + lanes, width); ++j)
          for (int64_t i = h; i < std::min(h + lanes, height); ++i) to[j * to_row + i] = from[i * from_row + j];
        continue;
      }
      Vector<T> row[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) row[i] = load(from + (h + i) * from_row + w);
#pragma GCC unroll 4
      for (int step = 1; step < lanes; step *= 2) {
        Vector<T> mixed[lanes];
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) mixed[i] = interleave<T>(row[i / 2], row[i / 2 + lanes / 2], i % 2);
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) row[i] = mixed[i];
      }
#pragma GCC unroll 16
      for (int j = 0; j < lanes; ++j) store(to + (w + j) * to_row + h, row[j]);
    }
}

}  // namespace

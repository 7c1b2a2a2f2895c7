// What the kernels of this folder share: activations without branches or calls, and aligned memory.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace {

// While it lives, this thread takes numbers below the smallest normal one for 0. The prior shrinks weights of units that
// no row uses to such numbers, with which processors are slow: a long fit took four times as long.
class Flushed {
 public:
#ifdef __SSE__
  Flushed() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // results, and operands
  ~Flushed() { _mm_setcsr(before_); }
#else
  Flushed() : before_(0) {}
#endif
  Flushed(const Flushed&) = delete;
  Flushed& operator=(const Flushed&) = delete;

 private:
  const unsigned before_;
};

enum Activation : int64_t { kIdentity, kRelu, kTanh, kSigmoid, kSilu };

// exp without branches or calls, so that loops over it are vectorised: 2^n times a Taylor polynomial of degree 7 on
// |r| <= log(2)/2, relative error below 2e-7. NaN stays NaN.
inline float exponential(float x) {
  const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer in the low bits
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  const float value = p * power;
  const float low = x < -87.0f ? 0.0f : value;
  return x > 88.0f ? std::numeric_limits<float>::infinity() : low;
}
inline double exponential(double x) { return std::exp(x); }

template <typename T>
inline T sigmoid(T z) {
  return T(1) / (T(1) + exponential(-z));
}

// tanh |z| = (1 - e) / (1 + e), e = exp(-2 |z|); near 0, where 1 - e would cancel, the odd Taylor polynomial
inline float hyperbolic(float z) {
  const float size = std::fabs(z);
  const float e = exponential(-2.0f * size);
  const float far = (1.0f - e) / (1.0f + e);
  const float s = z * z;
  const float near = size * (1.0f + s * (-3.33333333e-1f + s * (1.33333333e-1f + s * (-5.39682540e-2f + s * 2.18694885e-2f))));
  return std::copysign(size < 0.25f ? near : far, z);
}
inline double hyperbolic(double z) { return std::tanh(z); }

// Numbers that a pass over them leaves in a core's nearest cache for the next.
constexpr int64_t kNear = 4096;

// h <- activation(z). `kept` receives z where the derivative needs it.
template <typename T>
void activate(Activation kind, int64_t count, T* z, T* kept) {
  switch (kind) {
    case kIdentity:
      break;
    case kRelu:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) z[i] = z[i] < T(0) ? T(0) : z[i];  // NaN stays NaN
      break;
    case kTanh:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) z[i] = hyperbolic(z[i]);
      break;
    case kSigmoid:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) z[i] = sigmoid(z[i]);
      break;
    case kSilu:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        kept[i] = z[i];
        z[i] = z[i] * sigmoid(z[i]);
      }
      break;
  }
}

// z <- z + bias; h <- activation(z), for units whose rows lie one after the other. Several units of few rows are one
// loop: what is left over at the end of a loop takes as long as whole vectors.
template <typename T>
void activate(Activation kind, int64_t rows, int64_t width, const T* bias, T* z, T* kept) {
  const int64_t most = std::max<int64_t>(1, kNear / rows);
  for (int64_t first = 0; first < width; first += most) {
    const int64_t units = std::min(most, width - first);
    T* at = z + first * rows;
    for (int64_t j = 0; bias && j < units; ++j) {
      const T b = bias[first + j];
#pragma omp simd
      for (int64_t i = 0; i < rows; ++i) at[j * rows + i] += b;
    }
    activate(kind, units * rows, at, kept ? kept + first * rows : nullptr);
  }
}

// g <- g * activation'(z), from the activation h, or from z where it was kept.
template <typename T>
void differentiate(Activation kind, int64_t count, const T* h, const T* kept, T* g) {
  switch (kind) {
    case kIdentity:
      break;
    case kRelu:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) g[i] = h[i] <= T(0) ? T(0) : g[i];
      break;
    case kTanh:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) g[i] *= T(1) - h[i] * h[i];
      break;
    case kSigmoid:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) g[i] *= h[i] * (T(1) - h[i]);
      break;
    case kSilu:
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const T s = sigmoid(kept[i]);
        g[i] *= s * (T(1) + kept[i] * (T(1) - s));
      }
      break;
  }
}

// Memory that starts on a cache line: products then round alike in every process, whatever the allocator does.
constexpr int64_t kLine = 64;

template <typename T>
class Aligned {
 public:
  T* at_least(int64_t count) {
    if (count > size_) {
      std::free(data_);
      data_ = static_cast<T*>(std::aligned_alloc(kLine, padded(count) * sizeof(T)));
      if (!data_) throw std::bad_alloc();
      size_ = count;
    }
    return data_;
  }
  Aligned() = default;
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  ~Aligned() { std::free(data_); }

  static int64_t padded(int64_t count) {
    const int64_t per_line = kLine / static_cast<int64_t>(sizeof(T));
    return (count + per_line - 1) / per_line * per_line;
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace

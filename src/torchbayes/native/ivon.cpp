// The two passes over all weights that a step of IVON takes (Shen et al. 2024); ivon.py says what they compute.
//
// A piece of a member's weights goes through a whole pass while it is in the first cache: its normal numbers are made,
// used and written in one go. Nothing is contracted to fused multiply-adds, so that the noise is that of noise.cpp bit
// for bit and a member is rounded alike wherever its weights lie in memory.

// GCC takes vectors of 256 bits where there are 512, out of care for the clock, which these loops do not depend on.
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "normal.hpp"

namespace {

template <typename T>
constexpr int64_t kPiece = kBlocks * (16 / sizeof(T));

// A number for each weight, or one for all of them: then a piece filled with it.
template <typename T>
struct Each {
  const T* values;
  bool one;
  alignas(64) T filled[kPiece<T>];

  Each(const T* from, int64_t count) : values(from), one(count == 1) {
    if (one) std::fill_n(filled, kPiece<T>, *from);
  }
  const T* at(int64_t position) const { return one ? filled : values + position; }
};

// Sum of logarithms: numbers are multiplied, and the exponents of the products are collected before these overflow.
template <typename T>
double sum_of_logs(const T* x, int64_t count) {
  constexpr int kSide = 16, kDeep = sizeof(T) == 4 ? 7 : 1;  // seven float32 numbers and a fraction fit into a double
  constexpr uint64_t kOne = 0x3ff0000000000000, kFraction = 0x000fffffffffffff;
  double product[kSide];
  int64_t exponent[kSide];
  std::fill_n(product, kSide, 1.0);
  std::fill_n(exponent, kSide, 0);
  int64_t i = 0;
  const auto collect = [&] {
#pragma omp simd
    for (int l = 0; l < kSide; ++l) {
      const uint64_t word = bits<uint64_t>(product[l]);
      exponent[l] += static_cast<int64_t>(word >> 52) - 1023;
      product[l] = bits<double>((word & kFraction) | kOne);
    }
  };
  for (; i + kSide * kDeep <= count; i += kSide * kDeep) {
    for (int k = 0; k < kDeep; ++k) {
#pragma omp simd
      for (int l = 0; l < kSide; ++l) product[l] *= static_cast<double>(x[i + k * kSide + l]);
    }
    collect();
  }
  for (; i < count; i += kSide) {
    for (int l = 0; l < kSide && i + l < count; ++l) product[l] *= static_cast<double>(x[i + l]);
    collect();
  }
  double fraction = 1;  // of sixteen numbers below 2
  int64_t twos = 0;
  for (int l = 0; l < kSide; ++l) {
    fraction *= product[l];
    twos += exponent[l];
  }
  return std::log(fraction) + static_cast<double>(twos) * 0.6931471805599453;
}

template <typename T>
void draw(T* weights, const T* mean, const T* precision, const T* loc, const T* penalty, int64_t each,
          int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream, double sign, double ess, double* sums,
          int threads) {
  const int64_t pieces = (size + kPiece<T> - 1) / kPiece<T>;
  const Each<T> locs(loc, each), penalties(penalty, each);
  std::vector<double> parts(sums ? 2 * rows * pieces : 0);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * size >= kTogether)
  for (int64_t piece = 0; piece < rows * pieces; ++piece) {
    const int64_t row = piece / pieces, at = piece % pieces * kPiece<T>, count = std::min(kPiece<T>, size - at);
    const int64_t from = row * size + at;
    T* w = weights + from;
    const T *m = mean + from, *p = precision + from, *l = locs.at(at), *d = penalties.at(at);
    const T strength = static_cast<T>(ess), way = static_cast<T>(sign);
    alignas(64) T noise[kPiece<T>];
    normals(noise, at, count, seeds[row], stream);
    T energy = 0;
#pragma omp simd reduction(+ : energy)
    for (int64_t i = 0; i < count; ++i) {
      const T scale = T(1) / std::sqrt(strength * p[i]), centred = m[i] - l[i];
      w[i] = m[i] + scale * (way * noise[i]);
      energy += d[i] * (centred * centred + scale * scale);
    }
    if (!sums) continue;
    parts[2 * piece] = sum_of_logs(p, count);
    parts[2 * piece + 1] = energy;
  }
  if (!sums) return;
  for (int64_t row = 0; row < rows; ++row) {  // in one order, whatever the number of threads
    sums[2 * row] = sums[2 * row + 1] = 0;
    for (int64_t piece = row * pieces; piece < (row + 1) * pieces; ++piece) {
      sums[2 * row] += parts[2 * piece];
      sums[2 * row + 1] += parts[2 * piece + 1];
    }
  }
}

// The numbers of an update, and what they do to a weight: `sum` is that of its gradients at the draws, `product` that
// of gradients times displacements.
template <typename T>
struct Rates {
  T strength, lr, keep, take, unbias, rate, left, clip;

  Rates(const double* given, int64_t draws)
      : strength(static_cast<T>(given[0] / static_cast<double>(draws))),
        lr(static_cast<T>(given[1])),
        keep(static_cast<T>(given[2])),
        take(static_cast<T>((1 - given[2]) / static_cast<double>(draws))),
        unbias(static_cast<T>(given[3])),
        rate(static_cast<T>(given[4])),
        left(static_cast<T>(1 - given[4])),
        clip(static_cast<T>(given[5])) {}

  void advance(T* mean, T* precision, T* momentum, T sum, T product, T loc, T penalty) const {
    const T shift = left + rate * (strength * product + penalty / *precision);
    const T after = *precision * (T(0.5) + T(0.5) * (shift * shift));
    const T averaged = keep * *momentum + take * sum;
    const T step = (averaged * unbias + penalty * (*mean - loc)) / after;
    *momentum = averaged;
    *precision = after;
    *mean -= lr * std::min(std::max(step, -clip), clip);
  }
};

template <typename T>
void update(T* mean, T* precision, T* momentum, const T* gradient, const T* weights, const T* loc, const T* penalty,
            int64_t each, int64_t draws, int64_t rows, int64_t size, const double* given, int threads) {
  const int64_t pieces = (size + kPiece<T> - 1) / kPiece<T>;
  const Each<T> locs(loc, each), penalties(penalty, each);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * size >= kTogether)
  for (int64_t piece = 0; piece < rows * pieces; ++piece) {
    const int64_t row = piece / pieces, at = piece % pieces * kPiece<T>, count = std::min(kPiece<T>, size - at);
    const int64_t from = row * size + at;
    const Rates<T> rates(given, draws);
    T *m = mean + from, *p = precision + from, *g = momentum + from;
    const T *slope = gradient + from, *w = weights + from, *l = locs.at(at), *d = penalties.at(at);
    if (draws == 1) {  // without the detour over sums, which takes half as long again
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        rates.advance(m + i, p + i, g + i, slope[i], slope[i] * (w[i] - m[i]), l[i], d[i]);
      }
      continue;
    }
    alignas(64) T sum[kPiece<T>] = {}, product[kPiece<T>] = {};
    for (int64_t s = 0; s < draws; ++s, slope += rows * size, w += rows * size) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        sum[i] += slope[i];
        product[i] += slope[i] * (w[i] - m[i]);
      }
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) rates.advance(m + i, p + i, g + i, sum[i], product[i], l[i], d[i]);
  }
}

}  // namespace

extern "C" {

void draw_float32(float* weights, const float* mean, const float* precision, const float* loc,
                  const float* penalty, int64_t each, int64_t rows, int64_t size, const uint64_t* seeds,
                  uint64_t stream, double sign, double ess, double* sums, int64_t threads) {
  draw(weights, mean, precision, loc, penalty, each, rows, size, seeds, stream, sign, ess, sums,
       static_cast<int>(threads));
}

void draw_float64(double* weights, const double* mean, const double* precision, const double* loc,
                  const double* penalty, int64_t each, int64_t rows, int64_t size, const uint64_t* seeds,
                  uint64_t stream, double sign, double ess, double* sums, int64_t threads) {
  draw(weights, mean, precision, loc, penalty, each, rows, size, seeds, stream, sign, ess, sums,
       static_cast<int>(threads));
}

void update_float32(float* mean, float* precision, float* momentum, const float* gradient, const float* weights,
                    const float* loc, const float* penalty, int64_t each, int64_t draws, int64_t rows, int64_t size,
                    const double* rates, int64_t threads) {
  update(mean, precision, momentum, gradient, weights, loc, penalty, each, draws, rows, size, rates,
         static_cast<int>(threads));
}

void update_float64(double* mean, double* precision, double* momentum, const double* gradient, const double* weights,
                    const double* loc, const double* penalty, int64_t each, int64_t draws, int64_t rows, int64_t size,
                    const double* rates, int64_t threads) {
  update(mean, precision, momentum, gradient, weights, loc, penalty, each, draws, rows, size, rates,
         static_cast<int>(threads));
}

}  // extern "C"

// The passes over all weights that a step of IVON (Shen et al. 2024) or of variational inference with independent
// weights (Blundell et al. 2015) takes; passes.py says what they compute.
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

#include "common.hpp"
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

// Sums of pieces, added up for each row in one order, whatever the number of threads.
void total(const std::vector<double>& parts, int64_t rows, int64_t pieces, double* sums) {
  for (int64_t row = 0; row < rows; ++row) {
    sums[2 * row] = sums[2 * row + 1] = 0;
    for (int64_t piece = row * pieces; piece < (row + 1) * pieces; ++piece) {
      sums[2 * row] += parts[2 * piece];
      sums[2 * row + 1] += parts[2 * piece + 1];
    }
  }
}

template <typename T>
void ivon_draw(T* weights, const T* mean, const T* precision, const T* loc, const T* penalty, int64_t each,
               int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream, double sign, double ess,
               double* sums, int threads) {
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
  if (sums) total(parts, rows, pieces, sums);
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
void ivon_update(T* mean, T* precision, T* momentum, const T* gradient, const T* weights, const T* loc,
                 const T* penalty, int64_t each, int64_t draws, int64_t rows, int64_t size, const double* given,
                 int threads) {
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

// exp in double without branches or calls: 2^n times a Taylor polynomial of degree 13 on |r| <= log(2)/2.
inline float power(float x) { return exponential(x); }
inline double power(double x) {
  const double clamped = x < -708.0 ? -708.0 : (x > 709.0 ? 709.0 : x);
  const double shifted = clamped * 1.4426950408889634 + 0x1.8p52;  // rounds to an integer in the low bits
  const double n = shifted - 0x1.8p52;
  const double r = (clamped - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  constexpr double terms[] = {1.0,         1.0,          1.0 / 2,       1.0 / 6,        1.0 / 24,
                              1.0 / 120,   1.0 / 720,    1.0 / 5040,    1.0 / 40320,    1.0 / 362880,
                              1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
  double p = terms[13];
#pragma GCC unroll 13
  for (int k = 12; k >= 0; --k) p = p * r + terms[k];
  const double value = p * bits<double>((bits<uint64_t>(shifted) + 1023) << 52);
  const double low = x < -708.0 ? 0.0 : value;
  return x > 709.0 ? std::numeric_limits<double>::infinity() : low;
}

// Scales of a piece, and what its divergence from the prior is made of: added to `sums`.
template <typename T>
void divergence(const T* mean, const T* log_scale, const T* loc, const T* penalty, int64_t count, T* scale,
                double* sums) {
  double logs = 0;
  T energy = 0;
#pragma omp simd reduction(+ : energy)
  for (int64_t i = 0; i < count; ++i) {
    const T centred = mean[i] - loc[i];
    scale[i] = power(log_scale[i]);
    energy += penalty[i] * (centred * centred + scale[i] * scale[i]);
  }
#pragma omp simd reduction(+ : logs)
  for (int64_t i = 0; i < count; ++i) logs += static_cast<double>(log_scale[i]);
  sums[0] += logs;
  sums[1] += energy;
}

// Parameters of a row are `size` means, then `size` logarithms of scales. Of a row the noise is that of all its `draws`
// one after the other; with `pairs` there are as many draws again of the opposite noise. No draws: the scales alone.
template <typename T>
void vi_draw(T* weights, const T* parameters, const T* loc, const T* penalty, int64_t each, int64_t draws,
             int64_t pairs, int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream, double* sums,
             int threads) {
  const int64_t length = std::max<int64_t>(draws, 1) * size, stride = (pairs ? 2 : 1) * length;
  const int64_t pieces = (length + kPiece<T> - 1) / kPiece<T>;
  const Each<T> locs(loc, each), penalties(penalty, each);
  std::vector<double> parts(2 * rows * pieces);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * length >= kTogether)
  for (int64_t piece = 0; piece < rows * pieces; ++piece) {
    const int64_t row = piece / pieces, at = piece % pieces * kPiece<T>, count = std::min(kPiece<T>, length - at);
    alignas(64) T noise[kPiece<T>], scale[kPiece<T>];
    if (draws) normals(noise, at, count, seeds[row], stream);
    for (int64_t done = 0, more; done < count; done += more) {  // a piece may hold several draws of few weights
      const int64_t first = (at + done) % size;
      more = std::min(count - done, size - first);
      const T *m = parameters + row * 2 * size + first, *log_scale = m + size, *z = noise + done;
      double later[2] = {}, *sum = at + done < size ? &parts[2 * piece] : later;  // once is enough
      T *w = weights + row * stride + at + done, *into = draws ? scale : w;
      divergence(m, log_scale, locs.at(first), penalties.at(first), more, into, sum);
      if (!draws) continue;
#pragma omp simd
      for (int64_t i = 0; i < more; ++i) w[i] = m[i] + scale[i] * z[i];
      if (!pairs) continue;
#pragma omp simd
      for (int64_t i = 0; i < more; ++i) w[length + i] = m[i] - scale[i] * z[i];
    }
  }
  total(parts, rows, pieces, sums);
}

// The rule of Kingma and Ba (2015), and the decay of weights before it.
template <typename T>
struct Adam {
  T take1, keep2, take2, step, unbias, eps, left;

  explicit Adam(const double* given)  // beta1, beta2, eps, lr, decay, steps taken with this one
      : take1(static_cast<T>(1 - given[0])),
        keep2(static_cast<T>(given[1])),
        take2(static_cast<T>(1 - given[1])),
        step(static_cast<T>(given[3] / (1 - std::pow(given[0], given[5])))),
        unbias(static_cast<T>(1 / std::sqrt(1 - std::pow(given[1], given[5])))),
        eps(static_cast<T>(given[2])),
        left(static_cast<T>(1 - given[3] * given[4])) {}

  void advance(T* x, T* first, T* second, const T* gradient, int64_t count) const {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T g = gradient[i], m = first[i] + take1 * (g - first[i]), v = keep2 * second[i] + take2 * (g * g);
      first[i] = m;
      second[i] = v;
      x[i] = left * x[i] - step * m / (std::sqrt(v) * unbias + eps);
    }
  }
};

// Writes the gradient by means and logarithms of scales to `out`, or takes a step of Adam along it where that is null.
// A draw's noise is not made again: what it moved its weight by, rounding included, is the displacement itself.
template <typename T>
void vi_update(T* parameters, T* first, T* second, T* out, const T* gradient, const T* weights, const T* by_mean,
               const T* by_scale, const T* loc, const T* penalty, int64_t each, int64_t draws, int64_t rows,
               int64_t size, const double* given, int threads) {
  const int64_t pieces = (size + kPiece<T> - 1) / kPiece<T>;
  const Each<T> locs(loc, each), penalties(penalty, each);
  alignas(64) static const T zeros[kPiece<T>] = {};
  const T share = static_cast<T>(given[0]), strength = static_cast<T>(given[1]), entropy = static_cast<T>(given[2]);
  const Adam<T> adam(given + 3);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * size >= kTogether)
  for (int64_t piece = 0; piece < rows * pieces; ++piece) {
    const int64_t row = piece / pieces, at = piece % pieces * kPiece<T>, count = std::min(kPiece<T>, size - at);
    const int64_t from = 2 * row * size + at;
    T *m = parameters + from, *log_scale = m + size;
    const T *l = locs.at(at), *d = penalties.at(at);
    const T* a = by_mean ? by_mean + row * size + at : zeros;
    const T* c = by_scale ? by_scale + row * size + at : zeros;
    alignas(64) T sum[kPiece<T>], product[kPiece<T>];
    for (int64_t s = 0; s < draws; ++s) {
      const T *slope = gradient + (row * draws + s) * size + at, *w = weights + (row * draws + s) * size + at;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const T moved = slope[i] * (w[i] - m[i]);
        sum[i] = s ? sum[i] + slope[i] : slope[i];
        product[i] = s ? product[i] + moved : moved;
      }
    }
    if (!draws) std::fill_n(sum, count, T(0)), std::fill_n(product, count, T(0));
    T *g = out ? out + from : sum, *h = out ? g + size : product;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T scale = power(log_scale[i]), pull = strength * d[i];
      g[i] = share * sum[i] + (a[i] + pull * (m[i] - l[i]));
      h[i] = share * product[i] + scale * (c[i] + pull * scale) + entropy;
    }
    if (out) continue;
    adam.advance(m, first + from, second + from, g, count);
    adam.advance(log_scale, first + from + size, second + from + size, h, count);
  }
}

// mean <- mean + sqrt(v) z and v <- z / sqrt(v) for outputs of variance v; 0 where that is below `least`.
template <typename T>
void perturb(T* mean, T* variance, int64_t size, uint64_t seed, uint64_t stream, double least, int threads) {
  const int64_t pieces = (size + kPiece<T> - 1) / kPiece<T>;
  const T smallest = static_cast<T>(least);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && size >= kTogether)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t at = piece * kPiece<T>, count = std::min(kPiece<T>, size - at);
    T *m = mean + at, *v = variance + at;
    alignas(64) T noise[kPiece<T>];
    normals(noise, at, count, seed, stream);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const T root = std::sqrt(v[i] < smallest ? smallest : v[i]);  // NaN stays NaN
      m[i] += root * noise[i];
      v[i] = v[i] < smallest ? T(0) : noise[i] / root;
    }
  }
}

}  // namespace

extern "C" {

void ivon_draw_float32(float* weights, const float* mean, const float* precision, const float* loc,
                       const float* penalty, int64_t each, int64_t rows, int64_t size, const uint64_t* seeds,
                       uint64_t stream, double sign, double ess, double* sums, int64_t threads) {
  ivon_draw(weights, mean, precision, loc, penalty, each, rows, size, seeds, stream, sign, ess, sums,
       static_cast<int>(threads));
}

void ivon_draw_float64(double* weights, const double* mean, const double* precision, const double* loc,
                       const double* penalty, int64_t each, int64_t rows, int64_t size, const uint64_t* seeds,
                       uint64_t stream, double sign, double ess, double* sums, int64_t threads) {
  ivon_draw(weights, mean, precision, loc, penalty, each, rows, size, seeds, stream, sign, ess, sums,
       static_cast<int>(threads));
}

void ivon_update_float32(float* mean, float* precision, float* momentum, const float* gradient, const float* weights,
                         const float* loc, const float* penalty, int64_t each, int64_t draws, int64_t rows,
                         int64_t size, const double* rates, int64_t threads) {
  ivon_update(mean, precision, momentum, gradient, weights, loc, penalty, each, draws, rows, size, rates,
         static_cast<int>(threads));
}

void ivon_update_float64(double* mean, double* precision, double* momentum, const double* gradient,
                         const double* weights, const double* loc, const double* penalty, int64_t each, int64_t draws,
                         int64_t rows, int64_t size, const double* rates, int64_t threads) {
  ivon_update(mean, precision, momentum, gradient, weights, loc, penalty, each, draws, rows, size, rates,
         static_cast<int>(threads));
}

void vi_draw_float32(float* weights, const float* parameters, const float* loc, const float* penalty, int64_t each,
                     int64_t draws, int64_t pairs, int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream,
                     double* sums, int64_t threads) {
  vi_draw(weights, parameters, loc, penalty, each, draws, pairs, rows, size, seeds, stream, sums,
          static_cast<int>(threads));
}

void vi_update_float32(float* parameters, float* first, float* second, float* out, const float* gradient,
                       const float* weights, const float* by_mean, const float* by_scale, const float* loc,
                       const float* penalty, int64_t each, int64_t draws, int64_t rows, int64_t size,
                       const double* given, int64_t threads) {
  vi_update(parameters, first, second, out, gradient, weights, by_mean, by_scale, loc, penalty, each, draws, rows, size,
            given, static_cast<int>(threads));
}

void vi_draw_float64(double* weights, const double* parameters, const double* loc, const double* penalty, int64_t each,
                     int64_t draws, int64_t pairs, int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream,
                     double* sums, int64_t threads) {
  vi_draw(weights, parameters, loc, penalty, each, draws, pairs, rows, size, seeds, stream, sums,
          static_cast<int>(threads));
}

void vi_update_float64(double* parameters, double* first, double* second, double* out, const double* gradient,
                       const double* weights, const double* by_mean, const double* by_scale, const double* loc,
                       const double* penalty, int64_t each, int64_t draws, int64_t rows, int64_t size,
                       const double* given, int64_t threads) {
  vi_update(parameters, first, second, out, gradient, weights, by_mean, by_scale, loc, penalty, each, draws, rows, size,
            given, static_cast<int>(threads));
}

void perturb_float32(float* mean, float* variance, int64_t size, uint64_t seed, uint64_t stream, double least,
                     int64_t threads) {
  perturb(mean, variance, size, seed, stream, least, static_cast<int>(threads));
}

void perturb_float64(double* mean, double* variance, int64_t size, uint64_t seed, uint64_t stream, double least,
                     int64_t threads) {
  perturb(mean, variance, size, seed, stream, least, static_cast<int>(threads));
}

}  // extern "C"

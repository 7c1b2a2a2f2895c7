// Layers that take their weights as distributions, w = m + s e: each then has a second product, of other inputs with
// other weights, and its outputs get noise of their own (density/layers/noisy.py has the formulas). With x the inputs
// of a layer, z = x m and a the outputs,
//
//     local:    y = x x,  v = y (s s),   a = z + sqrt(v) e,   ratio = e / sqrt(v), 0 where v is next to 0
//     flipped:  y = p x,  v = y (s e),   a = z + q v,         ratio = q         (p and q: signs of each row)
//
// and backwards, with g = dL/da and h = g ratio,
//
//     dL/dm = x^T g,   dL/ds = factor (y^T h),   dL/dx = g m^T + p (h (second weights)^T)
//
// where factor is s and p is x for local noise, factor is e for flipped signs. Bias terms go with the weights.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common.hpp"
#include "products.hpp"
#include "vectors.hpp"

extern "C" {

// The fields of torchbayes.native.spread, in order. Calls are those of layers with weights, convolutions first.
struct SpreadWeights {
  const void* weights;          // (M, D): second weights
  const void* factor;           // (M, D)
  void* gradient;               // (M, D): receives dL/ds
  const uint64_t* seeds;        // M
  const int64_t* flipped;       // of each call
  const uint64_t* streams;      // of the noise of each call that is not flipped
  const void* const* before;    // of each call that is flipped: p, (M, B, inputs)
  const void* const* after;     // and q, (M, B, outputs)
  int64_t first;                // number of the first row, of those that all processes share
  double least;                 // variance below which an output has no noise
};

}  // extern "C"

namespace {

using Normals32 = void (*)(float*, int64_t, int64_t, uint64_t, uint64_t);
using Normals64 = void (*)(double*, int64_t, int64_t, uint64_t, uint64_t);
Normals32 normals32 = nullptr;
Normals64 normals64 = nullptr;

// The numbers of positions at, at + 1, ..., at + count - 1 of a stream.
inline void normals_from(float* out, int64_t at, int64_t count, uint64_t seed, uint64_t stream) {
  normals32(out, at, count, seed, stream);
}
inline void normals_from(double* out, int64_t at, int64_t count, uint64_t seed, uint64_t stream) {
  normals64(out, at, count, seed, stream);
}

// What a run of rows of one member needs.
template <typename T>
struct Spread {
  const SpreadWeights& about;
  int64_t member, rows, row;  // which member, rows of each, and the first of these
  const T* weights;
  T* gradient;

  bool flipped(int64_t call) const { return about.flipped[call] != 0; }
  const T* before(int64_t call, int64_t width) const { return signs(about.before[call], width); }
  const T* after(int64_t call, int64_t width) const { return signs(about.after[call], width); }

  // Noise of the outputs of `count` rows from the i-th on, each of `width` numbers.
  void noise(int64_t call, int64_t i, int64_t count, int64_t width, T* out) const {
    normals_from(out, (about.first + row + i) * width, count * width, about.seeds[member], about.streams[call]);
  }

  // The same from another row on, with its own gradient or another one.
  Spread from(int64_t later, T* into = nullptr) const {
    return {about, member, rows, row + later, weights, into ? into : gradient};
  }

 private:
  const T* signs(const void* all, int64_t width) const {
    return static_cast<const T*>(all) + (member * rows + row) * width;
  }
};

// z <- z + sqrt(v) e, v <- e / sqrt(v); 0 where v is below `least`.
template <typename T>
inline void perturb(int64_t count, const T* noise, T least, T* z, T* v) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T root = std::sqrt(v[i] < least ? least : v[i]);  // NaN stays NaN
    z[i] += root * noise[i];
    v[i] = v[i] < least ? T(0) : noise[i] / root;
  }
}

// z <- z + q v, v <- q.
template <typename T>
inline void flip(int64_t count, const T* signs, T* z, T* v) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    z[i] += signs[i] * v[i];
    v[i] = signs[i];
  }
}

// c = a b
template <typename T>
inline void times(int64_t count, const T* a, const T* b, T* c) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) c[i] = a[i] * b[i];
}

// c += a b
template <typename T>
inline void add_times(int64_t count, const T* a, const T* b, T* c) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) c[i] += a[i] * b[i];
}

// One linear layer, in the terms of products.hpp. `bias_at` is negative where it has none.
struct LinearCall {
  int64_t call, rows, in, out, weights_at, bias_at;
  bool by_rows;
};

// The second products of linear layers, and what they keep between the passes of a few rows.
template <typename T>
class SecondProducts {
 public:
  // Get ready for so many rows of layers of the given widths.
  void prepare(const int64_t* widths, int64_t layers, int64_t rows) {
    int64_t total = 0, widest = *std::max_element(widths, widths + layers + 1);
    for (int64_t l = 0; l < layers; ++l)
      total += Aligned<T>::padded(rows * widths[l]) + Aligned<T>::padded(rows * widths[l + 1]);
    T* at = memory_.at_least(total + 2 * Aligned<T>::padded(rows * widest));
    const auto take = [&](int64_t count) {
      T* piece = at;
      at += Aligned<T>::padded(count);
      return piece;
    };
    inputs_.resize(layers);
    ratio_.resize(layers);
    for (int64_t l = 0; l < layers; ++l) {
      inputs_[l] = take(rows * widths[l]);
      ratio_[l] = take(rows * widths[l + 1]);
    }
    for (T*& piece : spare_) piece = take(rows * widest);
  }

  // Give noise to the outputs z of layer l of the inputs x.
  void forward(int64_t l, const LinearCall& c, const Spread<T>& spread, const T* x, T* z) {
    T *y = inputs_[l], *v = ratio_[l];
    times(c.rows * c.in, x, factor(c, spread, x), y);
    multiply(c.rows, c.in, c.out, y, c.by_rows, spread.weights + c.weights_at, v);
    const T* bias = c.bias_at < 0 ? nullptr : spread.weights + c.bias_at;
    activate<T>(kIdentity, c.rows, c.out, bias, v, nullptr);
    if (spread.flipped(c.call)) {
      transpose(c.rows, c.out, spread.after(c.call, c.out), c.out, spare_[0], c.rows);
      flip(c.rows * c.out, spare_[0], z, v);
    } else {
      spread.noise(c.call, 0, c.rows, c.out, spare_[1]);
      transpose(c.rows, c.out, spare_[1], c.out, spare_[0], c.rows);
      perturb(c.rows * c.out, spare_[0], static_cast<T>(spread.about.least), z, v);
    }
  }

  // Add what the derivative g of its outputs says of the second weights, or write it (`first`).
  void by_weights(int64_t l, const LinearCall& c, const Spread<T>& spread, const T* g, bool first) {
    T* h = ratio_[l];
    times(c.rows * c.out, g, h, h);
    by_matrix(c.rows, c.in, c.out, inputs_[l], c.by_rows, h, first, spread.gradient + c.weights_at);
    if (c.bias_at >= 0) projected<T>(c.rows, c.out, h, nullptr, first, spread.gradient + c.bias_at);
  }

  // Add to the derivative of its inputs x; after `by_weights`.
  void by_inputs(int64_t l, const LinearCall& c, const Spread<T>& spread, const T* x, T* into) {
    ::by_inputs(c.rows, c.in, c.out, ratio_[l], spread.weights + c.weights_at, c.by_rows, spare_[1]);
    add_times(c.rows * c.in, factor(c, spread, x), spare_[1], into);
  }

 private:
  Aligned<T> memory_;
  std::vector<T*> inputs_, ratio_;
  T* spare_[2];

  // What turns the inputs x into those of the second product: x itself, or signs laid out like x.
  const T* factor(const LinearCall& c, const Spread<T>& spread, const T* x) {
    if (!spread.flipped(c.call)) return x;
    const T* signs = spread.before(c.call, c.in);
    if (c.by_rows) return signs;
    transpose(c.rows, c.in, signs, c.in, spare_[0], c.rows);
    return spare_[0];
  }
};

}  // namespace

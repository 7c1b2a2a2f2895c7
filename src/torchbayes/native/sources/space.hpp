// Weights in an affine subspace: w = c + u A for R coordinates u, and gradients by them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common.hpp"

extern "C" {

// The fields of torchbayes.native.description, in order. Numbers that follow the coordinates follow the weights.
struct Space {
  int64_t rank;        // R
  int64_t size;        // of w
  const void* centre;  // c
  const void* axes;    // A, R rows
};

}  // extern "C"

namespace {

// weights from which a pass over them is shared by threads
constexpr int64_t kWeightsForThreads = 32768;

// weights[..total] <- w and the `total - size` numbers after it.
template <typename T>
void lift(const Space& space, int64_t total, const T* coordinates, T* weights, int threads) {
  const int64_t size = space.size;
  const T *centre = static_cast<const T*>(space.centre), *axes = static_cast<const T*>(space.axes);
#pragma omp parallel for num_threads(threads) if (threads > 1 && size > kWeightsForThreads)
  for (int64_t from = 0; from < size; from += kNear) {
    const int64_t to = std::min(from + kNear, size);
    std::copy(centre + from, centre + to, weights + from);
    for (int64_t r = 0; r < space.rank; ++r) {
      const T u = coordinates[r];
      const T* axis = axes + r * size;
#pragma omp simd
      for (int64_t d = from; d < to; ++d) weights[d] += u * axis[d];
    }
  }
  std::copy_n(coordinates + space.rank, total - size, weights + size);
}

// gradient <- that by the coordinates and the numbers after them, of one by weights. Threads' sums are added in order,
// so that they are the same numbers every time.
template <typename T>
void pull(const Space& space, int64_t total, const T* by_weights, T* gradient, int threads) {
  const int64_t size = space.size, rank = space.rank;
  const T* axes = static_cast<const T*>(space.axes);
  const int team = size > kWeightsForThreads ? threads : 1;
  std::vector<double> sums(team * rank, 0.0);
#pragma omp parallel for num_threads(team) schedule(static, 1) if (team > 1)
  for (int t = 0; t < team; ++t)
    for (int64_t from = t * kNear; from < size; from += team * kNear) {
      const int64_t to = std::min(from + kNear, size);
      for (int64_t r = 0; r < rank; ++r) {
        const T* axis = axes + r * size;
        T sum = T(0);
#pragma omp simd reduction(+ : sum)
        for (int64_t d = from; d < to; ++d) sum += axis[d] * by_weights[d];
        sums[t * rank + r] += static_cast<double>(sum);
      }
    }
  for (int64_t r = 0; r < rank; ++r) {
    double sum = 0.0;
    for (int t = 0; t < team; ++t) sum += sums[t * rank + r];
    gradient[r] = static_cast<T>(sum);
  }
  std::copy_n(by_weights + size, total - size, gradient + rank);
}

}  // namespace

// Trajectories of NUTS (methods/mcmc/trees.py): doubled until they turn, by recursion, of one chain at a time.
//
// With the inverse mass R R^T, momenta v are kept as u = R^T v, in which the mass is the identity, and gradients g as
// h = R^T g: a leapfrog step is u <- u + e/2 h, w <- w + e R u, u <- u + e/2 h, and a subtree turns when the product of
// u at one of its ends with rho = (sum of u) - (u at one end + u at the other) / 2 is not positive.

#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "common.hpp"
#include "space.hpp"

extern "C" {

// The fields of torchbayes.methods.mcmc.tree_kernel, in order.
struct Growth {
  const double* step_sizes;   // of each chain
  const void* factors;        // R of each: its diagonal, or all of the lower triangle where it is dense
  bool dense;
  const uint64_t* streams;    // hashes, which numbers of doublings and of uniforms go on with
  int64_t doublings;          // most of them
  double divergence;          // energy errors above it end a trajectory
  const double* kinetic;      // of each chain at the start
  double* densities;          // log density where each chain is, before and after
  double* likelihoods;        // log likelihood there
  double* acceptances;        // receive the sum of the probabilities of acceptance of all points,
  int64_t* leapfrogs;         // their number,
  bool* divergent;            // whether the energy error was too large at one,
  bool* outside;              // whether it was not finite,
  bool* saturated;            // and whether the trajectory was cut short
};

}  // extern "C"

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// The finaliser of torchbayes.native.seeds.
inline uint64_t continued(uint64_t hash, uint64_t number) {
  uint64_t value = hash + number + 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// Call block(from, to) for runs of numbers that stay in a core's nearest cache.
template <typename Block>
void by_blocks(int64_t size, int threads, const Block& block) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && size > kWeightsForThreads)
  for (int64_t from = 0; from < size; from += kNear) block(from, std::min(from + kNear, size));
}

// A point that can be the next state, or momenta of a part of a trajectory: all in memory of its own.
template <typename T>
class Vectors {
 public:
  Vectors(int64_t count, int64_t size) : stride_(Aligned<T>::padded(size)) { data_ = memory_.at_least(count * stride_); }
  T* operator[](int64_t number) { return data_ + number * stride_; }

 private:
  Aligned<T> memory_;
  int64_t stride_;
  T* data_;
};

template <typename T, typename Density>
class Tree {
 public:
  // Of chain m, which is at `weights`; `momentum` is u.
  Tree(const Density& density, const Growth& about, int64_t m, int64_t size, T* weights, const T* momentum, T* gradient,
       int threads)
      : density_(density), about_(about), m_(m), size_(size), threads_(threads), weights_(weights), slope_(gradient),
        factor_(static_cast<const T*>(about.factors) + m * size * (about.dense ? size : 1)),
        start_(about.kinetic[m] - about.densities[m]), own_(kVectors, size) {
    for (int64_t side = 0; side < 2; ++side) {
      std::copy_n(weights, size, own_[3 * side]);
      std::copy_n(momentum, size, own_[3 * side + 1]);
      by_mass(gradient, own_[3 * side + 2]);
    }
    std::copy_n(momentum, size, own_[kSum]);
  }

  // Move the chain, and write what was seen.
  void grow() {
    bool growing = true;
    for (int64_t doubling = 0; growing && doubling < about_.doublings; ++doubling) growing = doubled(doubling);
    about_.acceptances[m_] = acceptance_;
    about_.leapfrogs[m_] = leapfrogs_;
    about_.divergent[m_] = divergent_;
    about_.outside[m_] = outside_;
    about_.saturated[m_] = growing;
  }

 private:
  // where vectors are: w, u and h at both ends; the sum of u over the trajectory; where the present subtree begins;
  // its first u, its last, and their sum; the point drawn from it and the gradient there; the present gradient
  enum { kSum = 6, kBegin, kFirst, kLast, kNewSum, kDrawn, kDrawnSlope, kGradient, kVectors };

  const Density& density_;
  const Growth& about_;
  const int64_t m_, size_;
  const int threads_;
  T *weights_, *slope_;  // of the point drawn from the trajectory
  const T* factor_;
  const double start_;  // H_0
  Vectors<T> own_;
  std::deque<Vectors<T>> levels_;  // of each size of subtree: last u of its left half; first u and sum of its right one
  double log_weight_ = 0.0, new_weight_ = kNever, drawn_density_ = 0.0, drawn_likelihood_ = 0.0, acceptance_ = 0.0;
  int64_t leapfrogs_ = 0, number_ = 0;
  uint64_t stream_ = 0;
  bool divergent_ = false, outside_ = false;
  T *w_ = nullptr, *u_ = nullptr, *h_ = nullptr, step_ = 0;  // the end that grows

  double uniform(int64_t number) const { return (continued(stream_, number) >> 11) * 0x1p-53; }

  // Add a subtree of 2^doubling steps. Return whether the trajectory still grows.
  bool doubled(int64_t doubling) {
    stream_ = continued(about_.streams[m_], doubling);
    const bool forwards = uniform(0) < 0.5;
    w_ = own_[3 * forwards], u_ = own_[3 * forwards + 1], h_ = own_[3 * forwards + 2];
    step_ = static_cast<T>(forwards ? about_.step_sizes[m_] : -about_.step_sizes[m_]);
    number_ = 0;
    new_weight_ = kNever;
    if (doubling) levels_.emplace_back(3, size_);
    std::copy_n(u_, size_, own_[kBegin]);
    if (!built(doubling, own_[kFirst], own_[kLast], own_[kNewSum])) return false;
    if (std::log(uniform(1)) < new_weight_ - log_weight_) {
      std::copy_n(own_[kDrawn], size_, weights_);
      std::copy_n(own_[kDrawnSlope], size_, slope_);
      about_.densities[m_] = drawn_density_;
      about_.likelihoods[m_] = drawn_likelihood_;
    }
    log_weight_ = added(log_weight_, new_weight_);
    return joined(own_[3 * !forwards + 1], own_[kBegin], own_[kSum], own_[kFirst], own_[kLast], own_[kNewSum]);
  }

  // Build a subtree of 2^depth steps. Return whether it is whole: neither turned nor diverged within.
  bool built(int64_t depth, T* first, T* last, T* sum) {
    if (!depth) return leapt(first, last, sum);
    Vectors<T>& halves = levels_[depth - 1];
    return built(depth - 1, first, halves[0], sum) && built(depth - 1, halves[1], last, halves[2]) &&
           joined(first, halves[0], sum, halves[1], last, halves[2]);
  }

  // Take a step. Return whether it stays near the energy of the start.
  bool leapt(T* first, T* last, T* sum) {
    double likelihood, log_prior;
    kicked();
    drifted();
    density_.at(m_, w_, own_[kGradient], likelihood, log_prior, threads_);
    by_mass(own_[kGradient], h_);
    kicked();
    const double level = density_.scale * likelihood + density_.prior_scale * log_prior;
    double gain = start_ + level - kinetic();
    if (!std::isfinite(gain)) gain = kNever;
    ++leapfrogs_;
    acceptance_ += std::exp(std::min(gain, 0.0));
    new_weight_ = added(new_weight_, gain);
    if (std::log(uniform(2 + number_++)) < gain - new_weight_) {
      std::copy_n(w_, size_, own_[kDrawn]);
      std::copy_n(own_[kGradient], size_, own_[kDrawnSlope]);
      drawn_density_ = level;
      drawn_likelihood_ = likelihood;
    }
    for (T* into : {first, last, sum}) std::copy_n(u_, size_, into);
    divergent_ = gain < -about_.divergence;
    outside_ = gain == kNever;
    return !divergent_;
  }

  // Join two neighbours, each given by its first u, its last, and its sum: the sum of both goes into the first one's.
  // Return whether they do not turn: together, or either with the next step of the other.
  bool joined(const T* first, const T* end, T* sum, const T* next, const T* last, const T* more) {
    const auto products = added_up<6>([&](int64_t from, int64_t to, T* sums) {
      T a = T(0), b = T(0), c = T(0), d = T(0), e = T(0), f = T(0);
#pragma omp simd reduction(+ : a, b, c, d, e, f)
      for (int64_t i = from; i < to; ++i) {
        const T both = sum[i] + more[i];
        const T rho = both - (first[i] + last[i]) / 2;
        const T left = sum[i] + next[i] - (first[i] + next[i]) / 2;
        const T right = end[i] + more[i] - (end[i] + last[i]) / 2;
        a += first[i] * rho, b += last[i] * rho;
        c += first[i] * left, d += next[i] * left;
        e += end[i] * right, f += last[i] * right;
        sum[i] = both;
      }
      sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d, sums[4] = e, sums[5] = f;
    });
    return std::none_of(products.begin(), products.end(), [](double product) { return product <= 0.0; });
  }

  double kinetic() const {
    return 0.5 * added_up<1>([&](int64_t from, int64_t to, T* sums) {
      T sum = T(0);
#pragma omp simd reduction(+ : sum)
      for (int64_t d = from; d < to; ++d) sum += u_[d] * u_[d];
      sums[0] = sum;
    })[0];
  }

  // Return the sums of what block(from, to, sums) gives for each block, in the order of the blocks.
  template <int64_t kSums, typename Block>
  std::array<double, kSums> added_up(const Block& block) const {
    std::vector<std::array<T, kSums>> parts((size_ + kNear - 1) / kNear);
    by_blocks(size_, threads_, [&](int64_t from, int64_t to) { block(from, to, parts[from / kNear].data()); });
    std::array<double, kSums> total{};
    for (const auto& part : parts)
      for (int64_t s = 0; s < kSums; ++s) total[s] += static_cast<double>(part[s]);
    return total;
  }

  static double added(double one, double other) {
    const double top = std::max(one, other);
    return top == kNever ? top : top + std::log1p(std::exp(std::min(one, other) - top));
  }

  // u <- u + e/2 h
  void kicked() {
    const T half = step_ / 2;
    by_blocks(size_, threads_, [&](int64_t from, int64_t to) {
      for (int64_t d = from; d < to; ++d) u_[d] += half * h_[d];
    });
  }

  // w <- w + e R u
  void drifted() {
    by_blocks(about_.dense ? 0 : size_, threads_, [&](int64_t from, int64_t to) {
      for (int64_t d = from; d < to; ++d) w_[d] += step_ * (factor_[d] * u_[d]);
    });
    for (int64_t i = 0; about_.dense && i < size_; ++i) {
      T sum = T(0);
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j <= i; ++j) sum += factor_[i * size_ + j] * u_[j];
      w_[i] += step_ * sum;
    }
  }

  // h <- R^T g
  void by_mass(const T* g, T* h) const {
    by_blocks(about_.dense ? 0 : size_, threads_, [&](int64_t from, int64_t to) {
      for (int64_t d = from; d < to; ++d) h[d] = factor_[d] * g[d];
    });
    if (about_.dense) std::fill_n(h, size_, T(0));
    for (int64_t i = 0; about_.dense && i < size_; ++i)
      for (int64_t j = 0; j <= i; ++j) h[j] += factor_[i * size_ + j] * g[i];
  }
};

}  // namespace

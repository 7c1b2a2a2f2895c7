// Passes of probabilistic backpropagation (Hernandez-Lobato and Adams 2015) over rows, one row after the other, and the
// refresh of the prior's factors; propagation.py says what they compute, in tensor operations.
//
// A row changes every weight, so that the next one waits for it: members run beside each other, rows do not.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr double kFloor = 1e-12;  // of the variance of a unit's input
constexpr double kRootTwoPi = 2.5066282746310002, kRootTwo = 1.4142135623730951;
constexpr int kRelu = 1;  // `Activation.RELU`

struct Layer {
  int64_t weight_at, bias_at, fan_in, fan_out, activation;
};

struct Gamma {
  double shape, rate;
};

// What a unit is before its activation, and what its derivatives need.
struct Unit {
  double gaussian, above, below, mean, slope;  // φ(a)/(2 √v), Φ(a), Φ(−a), mean after it, ∂variance/∂v
};

// Mean and variance of max(0, z) for z ~ N(m, v).
Unit rectify(double& mean, double& variance) {
  const double v = std::max(variance, kFloor), root = std::sqrt(v), a = mean / root;
  const double density = std::exp(-0.5 * a * a) / kRootTwoPi;
  const double less = 0.5 * std::erfc(std::abs(a) / kRootTwo), more = 1 - less;  // one call: most of a row's time
  const double above = a < 0 ? less : more, below = a < 0 ? more : less;
  const double hazard = a < -30 ? -a - 1 / a + 2 / (a * a * a) : density / above;
  const double lifted = mean + root * hazard, first = above * lifted;
  mean = first;
  variance = std::max(first * lifted * below + above * v * (1 - hazard * (hazard + a)), 0.0);
  return {0.5 * density / root, above, below, first, above - first * density / root};
}

struct Evidence {
  double value, by_mean, by_variance;
};

// log N(y; m, V) and its derivatives by m and V.
Evidence evidence(double residual, double variance) {
  const double ratio = residual / variance;
  return {-0.5 * (std::log(variance) + residual * ratio) - std::log(kRootTwoPi), ratio,
          0.5 * (ratio * ratio - 1 / variance)};
}

// The Gamma with the first two moments of γ under G(γ) N(r; 0, v + 1/(c γ)), each Z taken at the mean of 1/γ.
bool update(Gamma& gamma, double residual, double variance, double count) {
  const double a = gamma.shape, b = gamma.rate, share = b / (count * a);
  const double v0 = variance + b / (count * (a - 1)), v1 = variance + share, v2 = variance + b / (count * (a + 1));
  const double square = 0.5 * residual * residual;
  const auto step = [&](double from, double to, double fall) {
    return -0.5 * std::log1p(-fall / from) - square * fall / (from * to);
  };
  const double d1 = step(v0, v1, share / (a - 1)), d2 = step(v1, v2, share / (a + 1));
  const double shape = 1 / std::expm1(d2 - d1 + std::log1p(1 / a));
  const double rate = b / (std::exp(d2) + a * std::exp(d1) * std::expm1(d2 - d1));
  if (!(shape > 1 && rate > 0 && std::isfinite(shape) && std::isfinite(rate))) return false;
  gamma = {shape, rate};
  return true;
}

// The Gamma of a row that counts `count` times: its γ^{count/2} is γ^{1/2} of N(r; 0, v + 1/(count γ)) and the rest.
Gamma counted(const Gamma& gamma, double count) {
  const double shape = gamma.shape + 0.5 * (count - 1);
  return {shape > 1 ? shape : gamma.shape, gamma.rate};
}

struct Network {
  const Layer* layers;
  int64_t depth;
};

// Means, variances and second moments of what one layer takes, and the derivatives by them.
struct Values {
  std::vector<double> mean, variance, second, by_mean, by_variance, crossed;
  explicit Values(int64_t size)
      : mean(size), variance(size), second(size), by_mean(size), by_variance(size), crossed(size) {}
};

class Member {
 public:
  Member(Network network, double* mean, double* variance) : network_(network), mean_(mean), variance_(variance) {
    for (int64_t l = 0; l < network.depth; ++l) values_.emplace_back(network.layers[l].fan_in);
    values_.emplace_back(network.layers[network.depth - 1].fan_out);
    units_.resize(network.depth);
    for (int64_t l = 0; l < network.depth; ++l) units_[l].resize(network.layers[l].fan_out);
  }

  Values& outputs() { return values_.back(); }

  void forward(const double* inputs) {
    Values& first = values_.front();
    std::copy_n(inputs, first.mean.size(), first.mean.begin());
    for (int64_t l = 0; l < network_.depth; ++l) {
      l == 0 ? push<true>(l) : push<false>(l);
    }
  }

  // Weights after the derivatives of log Z by the outputs; returns how many were left as they were.
  int64_t backward() {
    int64_t reverted = 0;
    for (int64_t l = network_.depth - 1; l >= 0; --l) reverted += l == 0 ? pull<true>(l) : pull<false>(l);
    return reverted;
  }

 private:
  template <bool kFirst>
  void push(int64_t l) {
    const Layer& layer = network_.layers[l];
    Values &in = values_[l], &out = values_[l + 1];
    const int64_t count = layer.fan_in;
    const double *x = in.mean.data(), *s = in.variance.data();
    double* e = in.second.data();
    for (int64_t i = 0; i < count; ++i) e[i] = x[i] * x[i] + (kFirst ? 0.0 : s[i]);
    for (int64_t o = 0; o < layer.fan_out; ++o) {
      const double *m = mean_ + layer.weight_at + o * count, *v = variance_ + layer.weight_at + o * count;
      double z = 0, w = 0;
#pragma omp simd reduction(+ : z, w)
      for (int64_t i = 0; i < count; ++i) {
        z += m[i] * x[i];
        w += v[i] * e[i] + (kFirst ? 0.0 : m[i] * m[i] * s[i]);
      }
      if (layer.bias_at >= 0) z += mean_[layer.bias_at + o], w += variance_[layer.bias_at + o];
      if (layer.activation == kRelu) units_[l][o] = rectify(z, w);
      out.mean[o] = z, out.variance[o] = w;
    }
  }

  template <bool kFirst>
  int64_t pull(int64_t l) {
    const Layer& layer = network_.layers[l];
    Values &in = values_[l], &out = values_[l + 1];
    const int64_t count = layer.fan_in;
    double *dm = in.by_mean.data(), *dv = in.by_variance.data(), *crossed = in.crossed.data();
    const double *x = in.mean.data(), *s = in.variance.data(), *e = in.second.data();
    if (!kFirst) std::fill_n(dm, count, 0.0), std::fill_n(dv, count, 0.0), std::fill_n(crossed, count, 0.0);
    int64_t reverted = 0;
    for (int64_t o = 0; o < layer.fan_out; ++o) {
      double g = out.by_mean[o], h = out.by_variance[o];
      if (layer.activation == kRelu) {
        const Unit& u = units_[l][o];
        const double by_mean = g, by_variance = h;
        g = by_mean * u.above + by_variance * 2 * u.mean * u.below;
        h = by_mean * u.gaussian + by_variance * u.slope;
      }
      double *m = mean_ + layer.weight_at + o * count, *v = variance_ + layer.weight_at + o * count;
      int64_t lost = 0;
#pragma omp simd reduction(+ : lost)
      for (int64_t i = 0; i < count; ++i) {
        const double mean = m[i], variance = v[i];
        if (!kFirst) {
          dm[i] += g * mean;
          crossed[i] += h * variance;
          dv[i] += h * (mean * mean + variance);
        }
        const double by_mean = g * x[i] + (kFirst ? 0.0 : 2 * h * mean * s[i]), by_variance = h * e[i];
        const double moved = mean + variance * by_mean;
        const double left = variance - variance * variance * (by_mean * by_mean - 2 * by_variance);
        const bool good = left > 0 && left < HUGE_VAL;
        m[i] = good ? moved : mean;
        v[i] = good ? left : variance;
        lost += !good;
      }
      reverted += lost + bias(layer, o, g, h);
    }
    if (!kFirst) {
      for (int64_t i = 0; i < count; ++i) dm[i] += 2 * x[i] * crossed[i];
    }
    return reverted;
  }

  int64_t bias(const Layer& layer, int64_t o, double by_mean, double by_variance) {
    if (layer.bias_at < 0) return 0;
    double &m = mean_[layer.bias_at + o], &v = variance_[layer.bias_at + o];
    const double left = v - v * v * (by_mean * by_mean - 2 * by_variance);
    if (!(left > 0 && left < HUGE_VAL)) return 1;
    m += v * by_mean;
    v = left;
    return 0;
  }

  Network network_;
  double *mean_, *variance_;
  std::vector<Values> values_;
  std::vector<std::vector<Unit>> units_;
};

}  // namespace

extern "C" {

// One pass over B rows of each of M members. `noise` is (M, G, 2), shapes and rates, or (G), variances, where it is
// `known`; `counts` (M, B) says how often each row counts, or is null. `seen` (M, 3) receives the sum of log Z, the
// number of updates that were undone, and that of rows that count.
void propagate(double* mean, double* variance, double* noise, const double* inputs, const double* targets,
               const double* counts, const int64_t* layers, int64_t depth, int64_t members, int64_t size, int64_t rows,
               int64_t groups, int64_t known, double* seen, int64_t threads) {
  const Network network{reinterpret_cast<const Layer*>(layers), depth};
  const int64_t wide = network.layers[0].fan_in, outputs = network.layers[depth - 1].fan_out;
#pragma omp parallel for num_threads(std::min(threads, members)) schedule(static) if (threads > 1 && members > 1)
  for (int64_t m = 0; m < members; ++m) {
    Member member(network, mean + m * size, variance + m * size);
    Gamma* gammas = reinterpret_cast<Gamma*>(noise) + m * groups;
    Values& out = member.outputs();
    double total = 0, undone = 0, heard = 0;
    for (int64_t r = m * rows; r < (m + 1) * rows; ++r) {
      const double count = counts ? counts[r] : 1.0;
      if (count <= 0) continue;
      member.forward(inputs + r * wide);
      for (int64_t k = 0; k < outputs; ++k) {
        const int64_t g = groups > 1 ? k : 0;
        const Gamma own = known ? Gamma{2, noise[g]} : counted(gammas[g], count);
        const double spread = out.variance[k] + own.rate / (count * (own.shape - 1));
        const Evidence found = evidence(targets[r * outputs + k] - out.mean[k], spread);
        total += found.value;
        out.by_mean[k] = found.by_mean, out.by_variance[k] = found.by_variance;
      }
      for (int64_t k = 0; k < outputs && !known; ++k) {
        Gamma& gamma = gammas[groups > 1 ? k : 0];
        Gamma tilted = counted(gamma, count);
        const bool good = update(tilted, targets[r * outputs + k] - out.mean[k], out.variance[k], count);
        if (good) gamma = tilted;
        undone += !good;
      }
      undone += static_cast<double>(member.backward());
      heard += 1;
    }
    seen[3 * m] = total, seen[3 * m + 1] = undone, seen[3 * m + 2] = heard;
  }
}

// Every prior factor of M members is replaced in turn. `sites` (M, 4, D): precision and shift of the factor over the
// weight, in units of the prior, shape and rate of that over its precision; `factor` (M, 2): shape and rate of λ.
void refresh(double* mean, double* variance, double* sites, double* factor, const double* loc, const double* scale,
             int64_t members, int64_t size, int64_t threads) {
#pragma omp parallel for num_threads(std::min(threads, members)) schedule(static) if (threads > 1 && members > 1)
  for (int64_t m = 0; m < members; ++m) {
    double *means = mean + m * size, *variances = variance + m * size, *site = sites + m * 4 * size;
    Gamma& whole = reinterpret_cast<Gamma*>(factor)[m];
    for (int64_t d = 0; d < size; ++d) {
      double &precision = site[d], &shift = site[size + d], &shape = site[2 * size + d], &rate = site[3 * size + d];
      const double unit = scale[d] * scale[d], own = unit / variances[d];
      const double left = own - precision;
      const double pull = own * ((means[d] - loc[d]) / scale[d]) - shift;
      Gamma cavity{whole.shape - shape, whole.rate - rate};
      if (!(left > 1e-6 && cavity.shape > 1 && cavity.rate > 0)) continue;
      const double v = 1 / left, u = pull / left, total = v + cavity.rate / (cavity.shape - 1);
      Gamma found = cavity;
      if (!update(found, u, v, 1.0)) continue;
      const double now = u - v * u / total, spread = v - v * v / total;
      precision = 1 / spread - left, shift = now / spread - pull;
      shape = found.shape - cavity.shape, rate = found.rate - cavity.rate;
      whole = found;
      means[d] = loc[d] + scale[d] * now, variances[d] = unit * spread;
    }
  }
}

}  // extern "C"

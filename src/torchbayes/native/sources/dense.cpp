// Value and gradient of the log likelihood of fully connected networks, for M members at once, with convolutions and
// pools in front (images.hpp) or not.
//
// Activations are kept feature by feature (each feature's rows are contiguous), so that biases, activations and the
// softmax run over contiguous rows whatever the number of outputs, and every matrix product is a plain GEMM.
// In the terms of products.hpp, with A the input of a layer, Z its output and G = dL/dZ:
//
//     Z = A W + b,   dL/dW = A^T G,   dL/db = column sums of G,   dL/dA = G W^T.
//
// Weights can be distributions in place of points (spread.hpp); layers then have a second product of each kind. Or they
// are points in a subspace, given by coordinates (space.hpp).
//
// Threads take whole members, each with single-threaded products and without waiting for one another; members that are
// left over share the threads, by halves of the rows where there are many, else inside the products.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include <omp.h>

#include "common.hpp"
#include "images.hpp"
#include "products.hpp"
#include "space.hpp"
#include "spread.hpp"
#include "trees.hpp"

namespace {

enum Likelihood : int64_t { kNone, kCategorical, kGaussian, kHeteroscedastic };

constexpr double kLogRootTwoPi = 0.91893853320467274178;
// rows per thread from which splitting the rows of one member beats threads inside each product
constexpr int64_t kRowsPerThread = 192;
// the same for images
constexpr int64_t kImagesPerThread = 4;
// multiplications of a pass below which the threads of a product cost more than they bring
constexpr int64_t kWorkForThreads = 10'000'000;
// rows whose activations stay in a core's own cache while the next layer reads them
constexpr int64_t kRowsAtOnce = 512;
// weights of a linear layer from which it is the products with it that want rows, and how many
constexpr int64_t kWideLayer = 1 << 16, kRowsOfWide = 32;

}  // namespace

extern "C" {

// The fields of torchbayes.native.dense, in order.
struct Network {
  int64_t size;               // D
  int64_t layers;             // L
  const int64_t* widths;      // L + 1
  const int64_t* weights_at;  // L offsets in the flat vector
  const int64_t* biases_at;   // L offsets, -1 where a layer has none
  const int64_t* activations; // L
  int64_t likelihood;
  const double* scales;       // K noise scales of a Gaussian; null when they are learned
  int64_t scales_at;          // offset of learned log scales
  int64_t num_scales;         // 1 or K of them
  double floor;               // smallest variance of a heteroscedastic Gaussian
  int64_t stages;             // convolutions and pools in front, none where rows are vectors
  const Stage* stage;
};

struct Rows {
  const void* inputs;     // (rows, width) of each member
  const void* targets;    // int64 (rows) for classes, else (rows, outputs)
  int64_t count;          // rows
  int64_t input_stride;   // elements from one member's inputs to the next; 0 when shared
  int64_t target_stride;
  int64_t chunk;          // most rows that go through the network at once
  int64_t features;       // elements of one row
  int64_t height, width;  // of images
};

// Segment by segment normal, of log scales, or of groups; precision, degrees and width 0 where it is somebody else's.
struct Prior {
  int64_t segments;
  const int64_t* starts;  // segments + 1
  const double* locations;
  const double* precisions;
  const double* degrees;  // -degrees (u + exp(-2u) / 2), u = w - location
  const double* halves;   // -half log(1 + |u_g|^2 / width) for each group g
  const double* widths;
  const int64_t* grids;  // blocks, outer, groups, inner of each segment; group g of block b is all of [b, :, g, :]
};

// The ellipse of member m through its vector w and a second point v around l, and where to go on it.
struct Ellipses {
  const void* second;      // v
  const double* location;  // l, the same for all members
  const double* heights;   // what factor times the log likelihood must be above
  const double* shares;    // `most` numbers in [0, 1) of each member, by which angles after the first are drawn
  int64_t most;            // evaluations at most
  double factor;
  double* angles;     // bounds and first angle of each member; the last of these angles afterwards
  int64_t* visits;    // receives the evaluations of each member,
  int64_t* failures;  // those where the log likelihood was not finite,
  bool* found;        // and whether a point was found: its vector, log likelihood and log prior are written only then
};

}  // extern "C"

namespace {

template <typename T>
struct Workspace {
  Aligned<T> memory;
  std::vector<T*> activations;  // of each layer's output
  std::vector<T*> kept;         // z of each layer, null where not needed
  T* delta[2];
  T* scratch;
  SecondProducts<T> second;

  void prepare(const Network& net, int64_t rows) {
    int64_t total = Aligned<T>::padded(3 * rows), widest = 0;
    for (int64_t l = 0; l < net.layers; ++l) {
      total += Aligned<T>::padded(rows * net.widths[l + 1]) * (net.activations[l] == kSilu ? 2 : 1);
      widest = std::max(widest, net.widths[l + 1]);
    }
    total += 2 * Aligned<T>::padded(rows * widest);
    T* at = memory.at_least(total);
    const auto take = [&](int64_t count) {
      T* piece = at;
      at += Aligned<T>::padded(count);
      return piece;
    };
    activations.resize(net.layers);
    kept.resize(net.layers);
    for (int64_t l = 0; l < net.layers; ++l) {
      activations[l] = take(rows * net.widths[l + 1]);
      kept[l] = net.activations[l] == kSilu ? take(rows * net.widths[l + 1]) : nullptr;
    }
    for (T*& piece : delta) piece = take(rows * widest);
    scratch = take(3 * rows);
  }
};

template <typename T>
Workspace<T>& workspace() {
  static thread_local Workspace<T> own;
  return own;
}

int64_t convolutions(const Network& net) {
  return std::count_if(net.stage, net.stage + net.stages, [](const Stage& s) { return s.kind == kConvolution; });
}

LinearCall call_of(const Network& net, int64_t l, int64_t rows) {
  return {convolutions(net) + l, rows,   net.widths[l], net.widths[l + 1], net.weights_at[l], net.biases_at[l],
          l == 0};
}

template <typename T>
void forward(const Network& net, const T* weights, const T* inputs, int64_t rows, Workspace<T>& work,
             const Spread<T>* spread) {
  for (int64_t l = 0; l < net.layers; ++l) {
    const int64_t in = net.widths[l], out = net.widths[l + 1];
    const T* below = l ? work.activations[l - 1] : inputs;
    multiply(rows, in, out, below, l == 0, weights + net.weights_at[l], work.activations[l]);
    if (spread) work.second.forward(l, call_of(net, l, rows), *spread, below, work.activations[l]);
    const T* bias = net.biases_at[l] < 0 ? nullptr : weights + net.biases_at[l];
    activate(static_cast<Activation>(net.activations[l]), rows, out, bias, work.activations[l], work.kept[l]);
  }
}

// Return sum_i log softmax(f_i)[y_i]; f <- scale * its derivative.
template <typename T>
double categorical(int64_t rows, int64_t outputs, const int64_t* targets, T scale, T* f, T* scratch) {
  T *top = scratch, *sum = scratch + rows, *chosen = scratch + 2 * rows;
  for (int64_t i = 0; i < rows; ++i) {
    top[i] = f[i];
    sum[i] = T(0);
    chosen[i] = f[targets[i] * rows + i];
  }
  for (int64_t k = 1; k < outputs; ++k)
#pragma omp simd
    for (int64_t i = 0; i < rows; ++i) top[i] = top[i] < f[k * rows + i] ? f[k * rows + i] : top[i];
  for (int64_t k = 0; k < outputs; ++k)
#pragma omp simd
    for (int64_t i = 0; i < rows; ++i) {
      const T e = exponential(f[k * rows + i] - top[i]);
      f[k * rows + i] = e;
      sum[i] += e;
    }
  double total = 0.0;
  for (int64_t i = 0; i < rows; ++i) {
    total += static_cast<double>(chosen[i] - top[i]) - std::log(static_cast<double>(sum[i]));
    sum[i] = -scale / sum[i];
  }
  for (int64_t k = 0; k < outputs; ++k)
#pragma omp simd
    for (int64_t i = 0; i < rows; ++i) f[k * rows + i] *= sum[i];
  for (int64_t i = 0; i < rows; ++i) f[targets[i] * rows + i] += scale;
  return total;
}

// Return sum_i log N(y_i; f_i, s^2); f <- scale * its derivative; learned log scales get theirs.
template <typename T>
double gaussian(const Network& net, int64_t rows, int64_t outputs, const T* targets, const T* weights, T scale, T* f,
                T* gradient) {
  double total = 0.0;
  for (int64_t k = 0; k < outputs; ++k) {
    const int64_t own = net.num_scales == 1 ? 0 : k;
    const double noise = net.scales ? net.scales[own] : std::exp(static_cast<double>(weights[net.scales_at + own]));
    const T inverse = static_cast<T>(1.0 / noise);
    double squares = 0.0;
    T* row = f + k * rows;
    for (int64_t i = 0; i < rows; ++i) {
      const T z = (targets[i * outputs + k] - row[i]) * inverse;
      squares += static_cast<double>(z) * static_cast<double>(z);
      row[i] = scale * z * inverse;
    }
    total += -0.5 * squares - rows * (std::log(noise) + kLogRootTwoPi);
    if (gradient && !net.scales) gradient[net.scales_at + own] += static_cast<T>(scale * (squares - rows));
  }
  return total;
}

// Return sum_i log N(y_i; m_i, softplus(r_i) + floor), f = [m, r]; f <- scale * its derivative.
template <typename T>
double heteroscedastic(const Network& net, int64_t rows, int64_t outputs, const T* targets, T scale, T* f) {
  const int64_t half = outputs / 2;
  double total = 0.0;
  for (int64_t k = 0; k < half; ++k) {
    T *mean = f + k * rows, *raw = f + (half + k) * rows;
    for (int64_t i = 0; i < rows; ++i) {
      const double r = raw[i];
      const double variance = std::max(r, 0.0) + std::log1p(std::exp(-std::fabs(r))) + net.floor;
      const double error = static_cast<double>(targets[i * half + k]) - static_cast<double>(mean[i]);
      total += -0.5 * error * error / variance - 0.5 * std::log(variance) - kLogRootTwoPi;
      mean[i] = static_cast<T>(scale * error / variance);
      raw[i] = static_cast<T>(scale * 0.5 * (error * error / variance - 1.0) / variance / (1.0 + std::exp(-r)));
    }
  }
  return total;
}

// Add the rows' part to the gradients (or write it, when `first`) and return their log likelihood.
template <typename T>
double pass(const Network& net, const T* weights, const T* inputs, const void* targets, int64_t rows, T scale,
            T* gradient, bool first, const Spread<T>* spread) {
  Workspace<T>& work = workspace<T>();
  work.prepare(net, rows);
  if (spread) work.second.prepare(net.widths, net.layers, rows);
  if (net.stages) inputs = front<T>().forward(inputs, rows, spread);
  forward(net, weights, inputs, rows, work, spread);
  const int64_t last = net.layers - 1, outputs = net.widths[net.layers];
  T* f = work.activations[last];
  double total = 0.0;
  if (gradient && first && net.likelihood == kGaussian && !net.scales)
    std::fill_n(gradient + net.scales_at, net.num_scales, T(0));
  switch (static_cast<Likelihood>(net.likelihood)) {
    case kCategorical:
      total = categorical(rows, outputs, static_cast<const int64_t*>(targets), scale, f, work.scratch);
      break;
    case kGaussian:
      total = gaussian(net, rows, outputs, static_cast<const T*>(targets), weights, scale, f, gradient);
      break;
    case kHeteroscedastic:
      total = heteroscedastic(net, rows, outputs, static_cast<const T*>(targets), scale, f);
      break;
    case kNone:
      break;
  }
  if (!gradient) return total;
  T* g = f;
  for (int64_t l = last; l >= 0; --l) {
    const int64_t in = net.widths[l], out = net.widths[l + 1];
    const T* a = l ? work.activations[l - 1] : inputs;
    by_matrix(rows, in, out, a, l == 0, g, first, gradient + net.weights_at[l]);
    if (net.biases_at[l] >= 0) projected<T>(rows, out, g, nullptr, first, gradient + net.biases_at[l]);
    if (spread) work.second.by_weights(l, call_of(net, l, rows), *spread, g, first);
    if (l == 0 && !net.stages) break;
    T* below = l ? work.delta[l % 2] : front<T>().slopes();
    by_inputs(rows, in, out, g, weights + net.weights_at[l], l == 0, below);
    if (spread) work.second.by_inputs(l, call_of(net, l, rows), *spread, a, below);
    if (l == 0) {
      front<T>().backward(rows, spread);
      break;
    }
    differentiate(static_cast<Activation>(net.activations[l - 1]), rows * in, work.activations[l - 1],
                  work.kept[l - 1], below);
    g = below;
  }
  return total;
}

template <typename T>
const void* shifted(const Network& net, const void* targets, int64_t rows) {
  if (net.likelihood == kCategorical) return static_cast<const int64_t*>(targets) + rows;
  const int64_t outputs = net.widths[net.layers] / (net.likelihood == kHeteroscedastic ? 2 : 1);
  return static_cast<const T*>(targets) + rows * outputs;
}

// Size of the fewest chunks of equal size that `count` rows fall into; a pass keeps `times` as much as usual.
template <typename T>
int64_t evenly(const Network& net, const Rows& rows, int64_t count, int64_t times = 1) {
  int64_t most = kRowsAtOnce;
  if (net.stages) {
    const int64_t least = net.widths[0] * net.widths[1] > kWideLayer ? kRowsOfWide : 1;
    most = std::max(least, Front<T>::rows_at_once(net.stage, net.stages, rows.height, rows.width, times));
  }
  const int64_t chunk = std::min(rows.chunk, most);
  const int64_t chunks = (count + chunk - 1) / chunk;
  return (count + chunks - 1) / chunks;
}

// `count` rows in chunks.
template <typename T>
double passes(const Network& net, const T* weights, const T* inputs, const void* targets, int64_t count,
              const Rows& rows, T scale, T* gradient, const Spread<T>* spread) {
  const Flushed flushed;
  const int64_t chunk = evenly<T>(net, rows, count, spread ? 2 : 1);
  if (net.stages) {
    front<T>().prepare(net.stage, net.stages, rows.height, rows.width, chunk, spread);
    front<T>().begin(weights, gradient, spread);
  }
  double total = 0.0;
  for (int64_t at = 0; at < count; at += chunk) {
    const std::optional<Spread<T>> own = spread ? std::optional(spread->from(at)) : std::nullopt;
    total += pass(net, weights, inputs + at * rows.features, shifted<T>(net, targets, at), std::min(chunk, count - at),
                  scale, gradient, at == 0, own ? &*own : nullptr);
  }
  if (net.stages && gradient) front<T>().finish(gradient, spread);
  return total;
}

// into += others, which lie one after the other, by all threads of the team.
template <typename T>
void add_others(int64_t size, int64_t count, const T* others, int64_t stride, T* into) {
#pragma omp for simd
  for (int64_t d = 0; d < size; ++d)
    for (int64_t o = 0; o < count; ++o) into[d] += others[o * stride + d];
}

// One member with all threads.
template <typename T>
double shared(const Network& net, const T* weights, const T* inputs, const void* targets, const Rows& rows, T scale,
              T* gradient, int threads, const Spread<T>* spread) {
  if (threads == 1 || rows.count < threads * (net.stages ? kImagesPerThread : kRowsPerThread)) {
    const bool small = threads > 1 && rows.count * net.size < kWorkForThreads;
    const int before = small ? set_threads(1) : 0;
    const double total = passes(net, weights, inputs, targets, rows.count, rows, scale, gradient, spread);
    if (small) set_threads(before);
    return total;
  }
  std::vector<double> totals(threads, 0.0);
  const int64_t stride = Aligned<T>::padded(net.size), others = threads - 1;
  static thread_local Aligned<T> memory;
  T* first = gradient ? memory.at_least((spread ? 2 : 1) * others * stride) : nullptr;
  T* second = first + others * stride;
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
    const int64_t from = rows.count * t / threads, to = rows.count * (t + 1) / threads;
    T* into = !gradient ? nullptr : t == 0 ? gradient : first + (t - 1) * stride;
    std::optional<Spread<T>> own;
    if (spread) own.emplace(spread->from(from, t == 0 ? spread->gradient : second + (t - 1) * stride));
    totals[t] = passes(net, weights, inputs + from * rows.features, shifted<T>(net, targets, from), to - from, rows,
                       scale, into, own ? &*own : nullptr);
#pragma omp barrier
    if (gradient) add_others(net.size, others, first, stride, gradient);
    if (spread) add_others(net.size, others, second, stride, spread->gradient);
  }
  double total = 0.0;
  for (double part : totals) total += part;
  return total;
}

// Call f(squares of a group so far, weight) for each weight of a block of groups.
template <typename F>
void each_of_groups(double* of_groups, const int64_t outer, const int64_t groups, const int64_t inner, const F& f) {
  for (int64_t o = 0; o < outer; ++o)
    if (inner == 1) {
#pragma omp simd
      for (int64_t g = 0; g < groups; ++g) f(of_groups[g], o * groups + g);
    } else {
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t i = 0; i < inner; ++i) f(of_groups[g], (o * groups + g) * inner + i);
    }
}

// gradient += scale * d log p / dw of a segment whose groups share variances; return its log density.
template <typename T>
double add_groups(const Prior& prior, int64_t segment, const T* weights, T scale, T* gradient) {
  const double location = prior.locations[segment], half = prior.halves[segment], width = prior.widths[segment];
  const int64_t* grid = prior.grids + 4 * segment;
  const int64_t blocks = grid[0], outer = grid[1], groups = grid[2], inner = grid[3];
  std::vector<double> of_groups(groups);
  double total = 0.0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t start = prior.starts[segment] + b * outer * groups * inner;
    const T* block = weights + start;
    std::fill(of_groups.begin(), of_groups.end(), 0.0);
    each_of_groups(of_groups.data(), outer, groups, inner, [=](double& squares, int64_t d) {
      const double centred = static_cast<double>(block[d]) - location;
      squares += centred * centred;
    });
    for (double& number : of_groups) {
      total -= half * std::log1p(number / width);
      number = -2.0 * half / (number + width);
    }
    if (!gradient) continue;
    T* slope = gradient + start;
    each_of_groups(of_groups.data(), outer, groups, inner, [=](double factor, int64_t d) {
      slope[d] += scale * static_cast<T>(factor) * (block[d] - static_cast<T>(location));
    });
  }
  return total;
}

// gradient += scale * d log p / dw; return -1/2 sum precision (w - location)^2, and what others have instead.
template <typename T>
double add_prior(const Prior& prior, const T* weights, T scale, T* gradient, int threads) {
  double total = 0.0;
  for (int64_t s = 0; s < prior.segments; ++s) {
    const T location = static_cast<T>(prior.locations[s]), precision = static_cast<T>(prior.precisions[s]);
    if (const double degrees = prior.degrees[s]; degrees != 0.0)
      for (int64_t d = prior.starts[s]; d < prior.starts[s + 1]; ++d) {
        const double u = static_cast<double>(weights[d]) - prior.locations[s], small = std::exp(-2.0 * u);
        total -= degrees * (u + 0.5 * small);
        if (gradient) gradient[d] += scale * static_cast<T>(degrees * (small - 1.0));
      }
    if (prior.widths[s] != 0.0) total += add_groups(prior, s, weights, scale, gradient);
    if (precision == T(0)) continue;
    const T factor = -scale * precision;
    const int64_t start = prior.starts[s], size = prior.starts[s + 1] - start, block = 2048;
    double squares = 0.0;
#pragma omp parallel for num_threads(threads) reduction(+ : squares) if (threads > 1 && size > kWeightsForThreads)
    for (int64_t b = 0; b < (size + block - 1) / block; ++b) {
      const int64_t from = start + b * block, to = std::min(from + block, start + size);
      double sum = 0.0;
#pragma omp simd reduction(+ : sum)
      for (int64_t d = from; d < to; ++d) {
        const T centred = weights[d] - location;
        const double exact = static_cast<double>(centred);
        sum += exact * exact;
        if (gradient) gradient[d] += factor * centred;
      }
      squares += sum;
    }
    total -= 0.5 * prior.precisions[s] * squares;
  }
  return total;
}

// Whether every label is a class: they are used as indices.
bool labelled(const Network& net, const Rows& rows, int64_t members) {
  if (net.likelihood != kCategorical) return true;
  const int64_t outputs = net.widths[net.layers], count = rows.count * (rows.target_stride ? members : 1);
  const int64_t* labels = static_cast<const int64_t*>(rows.targets);
  return std::all_of(labels, labels + count, [=](int64_t label) { return label >= 0 && label < outputs; });
}

// Write the gradient of the log likelihood of member m at w, unless it is null, and return its value.
template <typename T>
double likelihood(const Network& net, const Rows& rows, int64_t m, const T* w, double scale, T* gradient, int threads,
                  const Spread<T>* spread = nullptr) {
  const T* x = static_cast<const T*>(rows.inputs) + m * rows.input_stride;
  const void* y = net.likelihood == kCategorical
                      ? static_cast<const void*>(static_cast<const int64_t*>(rows.targets) + m * rows.target_stride)
                      : static_cast<const void*>(static_cast<const T*>(rows.targets) + m * rows.target_stride);
  const T factor = static_cast<T>(scale);
  return threads == 1 ? passes(net, w, x, y, rows.count, rows, factor, gradient, spread)
                      : shared(net, w, x, y, rows, factor, gradient, threads, spread);
}

// Length of a member's vector: its weights, or its coordinates in a subspace.
int64_t length(const Network& net, const Space* space) {
  return space ? net.size - space->size + space->rank : net.size;
}

// Weights of a member: its vector itself, or the point in a subspace that it stands for.
template <typename T>
const T* weights_at(const Network& net, const Space* space, const T* at, int threads) {
  if (!space) return at;
  static thread_local Aligned<T> memory;
  T* weights = memory.at_least(net.size);
  lift(*space, net.size, at, weights, threads);
  return weights;
}

// What the gradient of a member is made of.
template <typename T>
struct Density {
  const Network& net;
  const Rows& rows;
  const Prior& prior;
  const Space* space;
  double scale, prior_scale;

  // Write the gradient of member m at its vector, unless it is null, and return log likelihood and log prior.
  void at(int64_t m, const T* at, T* gradient, double& value, double& log_prior, int threads) const {
    // with somewhere to write in any case: compilers sum in another order where nothing is written
    static thread_local Aligned<T> unused, by_weights;
    T* slope = gradient && space ? by_weights.at_least(net.size) : gradient;
    value = likelihood(net, rows, m, weights_at(net, space, at, threads), scale, slope, threads);
    if (gradient && space) pull(*space, net.size, slope, gradient, threads);
    T* into = gradient ? gradient : unused.at_least(length(net, space));
    log_prior = add_prior(prior, at, static_cast<T>(prior_scale), into, threads);
  }
};

// Call one(m, threads) for every member: whole members side by side, and those that are left over with all threads.
template <typename Function>
void for_each_member(int64_t members, int threads, const Function& one) {
  const int64_t alone = threads > 1 ? members / threads * threads : members;
  if (threads > 1 && alone)
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t m = 0; m < alone; ++m) one(m, 1);
  else
    for (int64_t m = 0; m < alone; ++m) one(m, 1);
  for (int64_t m = alone; m < members; ++m) one(m, threads);
}

// Return false, with nothing done, if a label is not a class.
template <typename T>
bool evaluate(const Network& net, const Rows& rows, const Prior& prior, const Space* space, int64_t members,
              const T* weights, double scale, double prior_scale, T* gradient, double* values, double* priors,
              int threads) {
  if (!labelled(net, rows, members)) return false;
  const Density<T> density{net, rows, prior, space, scale, prior_scale};
  const int64_t size = length(net, space);
  for_each_member(members, threads, [&](int64_t m, int count) {
    density.at(m, weights + m * size, gradient ? gradient + m * size : nullptr, values[m], priors[m], count);
  });
  return true;
}

// into <- factor into; return the sum of both gradients, which is finite where they are.
template <typename T>
double finish(int64_t size, const T* factor, const T* gradient, T* into, int threads) {
  double total = 0.0;
#pragma omp parallel for num_threads(threads) reduction(+ : total) if (threads > 1 && size > kWeightsForThreads)
  for (int64_t at = 0; at < size; at += kNear) {
    T sum = T(0);
#pragma omp simd reduction(+ : sum)
    for (int64_t d = at; d < std::min(at + kNear, size); ++d) {
      into[d] *= factor[d];
      sum += gradient[d] + into[d];
    }
    total += static_cast<double>(sum);
  }
  return total;
}

// The same of weights that are distributions, for the likelihood alone. `health` is finite where gradients are.
template <typename T>
bool evaluate_spread(const Network& net, const Rows& rows, const SpreadWeights& about, int64_t members, const T* means,
                     double scale, T* gradient, double* values, double* health, int threads) {
  if (!labelled(net, rows, members)) return false;
  for_each_member(members, threads, [&](int64_t m, int count) {
    const int64_t at = m * net.size;
    const Spread<T> spread{about, m, rows.count, 0, static_cast<const T*>(about.weights) + at,
                           static_cast<T*>(about.gradient) + at};
    values[m] = likelihood(net, rows, m, means + at, scale, gradient + at, count, &spread);
    health[m] = finish(net.size, static_cast<const T*>(about.factor) + at, gradient + at, spread.gradient, count);
  });
  return true;
}

// v <- v + kick g, then w <- w + step v / mass
template <typename T>
void move(int64_t size, T kick, const T* g, T* v, T step, const T* mass, T* w) {
#pragma omp simd
  for (int64_t d = 0; d < size; ++d) v[d] += kick * g[d];
  if (mass) {
#pragma omp simd
    for (int64_t d = 0; d < size; ++d) w[d] += step * (mass[d] * v[d]);
  } else {
#pragma omp simd
    for (int64_t d = 0; d < size; ++d) w[d] += step * v[d];
  }
}

// Move member m by steps[m] leapfrog steps of its step size: v <- v + e/2 g, w <- w + e v / mass, v <- v + e/2 g.
// `gradient` is that of the density at w, before and after. Return false, with nothing done, if a label is not a class.
template <typename T>
bool leapfrog(const Network& net, const Rows& rows, const Prior& prior, const Space* space, int64_t members,
              T* weights, T* momentum, T* gradient, const T* inverse_mass, const double* step_sizes,
              const int64_t* steps, double scale, double prior_scale, double* values, double* priors, int threads) {
  if (!labelled(net, rows, members)) return false;
  const Density<T> density{net, rows, prior, space, scale, prior_scale};
  const int64_t size = length(net, space);
  for_each_member(members, threads, [&](int64_t m, int count) {
    T *w = weights + m * size, *v = momentum + m * size, *g = gradient + m * size;
    const T* mass = inverse_mass ? inverse_mass + m * size : nullptr;
    const T step = static_cast<T>(step_sizes[m]), half = step / 2;
    for (int64_t number = 0; number < steps[m]; ++number) {
      const T kick = number ? step : half;  // two half kicks in a row are one
#pragma omp parallel for num_threads(count) if (count > 1 && size > kWeightsForThreads)
      for (int64_t d = 0; d < size; d += kNear)
        move(std::min(kNear, size - d), kick, g + d, v + d, step, mass ? mass + d : nullptr, w + d);
      density.at(m, w, g, values[m], priors[m], count);
    }
#pragma omp simd
    for (int64_t d = 0; d < size; ++d) v[d] += half * g[d];
  });
  return true;
}

// Move member m to l + (w - l) cos a + (v - l) sin a, with v given less l, at the first angle a above its height. Return
// false, with nothing done, if a label is not a class.
template <typename T>
bool slice(const Network& net, const Rows& rows, const Prior& prior, const Space* space, int64_t members, T* weights,
           const Ellipses& to, double* values, double* priors, int threads) {
  if (!labelled(net, rows, members)) return false;
  const Density<T> density{net, rows, prior, space, 1.0, 1.0};
  const int64_t size = length(net, space);
  for_each_member(members, threads, [&](int64_t m, int count) {
    static thread_local Aligned<T> memory;
    T *w = weights + m * size, *there = memory.at_least(size);
    const T* v = static_cast<const T*>(to.second) + m * size;
    double *bounds = to.angles + 3 * m, value = 0.0, log_prior = 0.0;
    for (int64_t number = 0; number < to.most && !to.found[m]; ++number) {
      const T along = static_cast<T>(std::cos(bounds[2])), across = static_cast<T>(std::sin(bounds[2]));
      for (int64_t d = 0; d < size; ++d) {
        const T location = static_cast<T>(to.location[d]);
        there[d] = location + (w[d] - location) * along + v[d] * across;
      }
      density.at(m, there, nullptr, value, log_prior, count);
      ++to.visits[m];
      to.failures[m] += !std::isfinite(value);
      if (std::isfinite(value) && to.factor * value > to.heights[m]) {
        to.found[m] = true;
        std::copy_n(there, size, w);
        values[m] = value;
        priors[m] = log_prior;
      } else {
        bounds[bounds[2] < 0 ? 0 : 1] = bounds[2];
        bounds[2] = bounds[0] + to.shares[m * to.most + number] * (bounds[1] - bounds[0]);
      }
    }
  });
  return true;
}

// Move every member by an iteration of NUTS. `momentum` and `gradient` are as trees.hpp says. Return false, with nothing
// done, if a label is not a class.
template <typename T>
bool trees(const Network& net, const Rows& rows, const Prior& prior, const Space* space, int64_t members, T* weights,
           const T* momentum, T* gradient, const Growth& about, double scale, double prior_scale, int threads) {
  if (!labelled(net, rows, members)) return false;
  const Density<T> density{net, rows, prior, space, scale, prior_scale};
  const int64_t size = length(net, space);
  for_each_member(members, threads, [&](int64_t m, int count) {
    const int64_t at = m * size;
    Tree<T, Density<T>>(density, about, m, size, weights + at, momentum + at, gradient + at, count).grow();
  });
  return true;
}

template <typename T>
void predict(const Network& net, const Rows& rows, const Space* space, int64_t members, const T* weights,
             int64_t stride, T* outputs, int threads) {
  const int64_t width = net.widths[net.layers];
  const auto one = [&](int64_t m, int64_t from, int64_t to) {
    const Flushed flushed;
    Workspace<T>& work = workspace<T>();
    const T* own = weights_at(net, space, weights + m * stride, 1);
    const T* inputs = static_cast<const T*>(rows.inputs) + m * rows.input_stride;
    const int64_t chunk = evenly<T>(net, rows, to - from);
    if (net.stages) {
      front<T>().prepare(net.stage, net.stages, rows.height, rows.width, chunk, false);
      front<T>().begin(own, false, nullptr);
    }
    for (int64_t at = from; at < to; at += chunk) {
      const int64_t count = std::min(chunk, to - at);
      work.prepare(net, count);
      const T* x = inputs + at * rows.features;
      if (net.stages) x = front<T>().forward(x, count, nullptr);
      forward<T>(net, own, x, count, work, nullptr);
      const T* f = work.activations[net.layers - 1];
      T* into = outputs + (m * rows.count + at) * width;
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = 0; k < width; ++k) into[i * width + k] = f[k * count + i];
    }
  };
  const int64_t alone = members / threads * threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int64_t m = 0; m < alone; ++m) one(m, 0, rows.count);
  for (int64_t m = alone; m < members; ++m) {
    if (rows.count < threads * (net.stages ? kImagesPerThread : kRowsPerThread)) {
      one(m, 0, rows.count);
      continue;
    }
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int64_t t = 0; t < threads; ++t) one(m, rows.count * t / threads, rows.count * (t + 1) / threads);
  }
}

}  // namespace

extern "C" {

void use_normals(void* single, void* doubled) {
  normals32 = reinterpret_cast<Normals32>(single);
  normals64 = reinterpret_cast<Normals64>(doubled);
}

void use_blas(void* single, void* doubled, void* threads) {
  gemm32 = reinterpret_cast<Gemm32>(single);
  gemm64 = reinterpret_cast<Gemm64>(doubled);
  set_threads = reinterpret_cast<int (*)(int)>(threads);
}

bool evaluate_float32(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                      const float* weights, double scale, double prior_scale, float* gradient, double* values,
                      double* priors, int64_t threads) {
  return evaluate(*net, *rows, *prior, space, members, weights, scale, prior_scale, gradient, values, priors,
                  static_cast<int>(threads));
}

bool evaluate_float64(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                      const double* weights, double scale, double prior_scale, double* gradient, double* values,
                      double* priors, int64_t threads) {
  return evaluate(*net, *rows, *prior, space, members, weights, scale, prior_scale, gradient, values, priors,
                  static_cast<int>(threads));
}

bool spread_float32(const Network* net, const Rows* rows, const SpreadWeights* about, int64_t members,
                    const float* means, double scale, float* gradient, double* values, double* health,
                    int64_t threads) {
  return evaluate_spread(*net, *rows, *about, members, means, scale, gradient, values, health,
                         static_cast<int>(threads));
}

bool spread_float64(const Network* net, const Rows* rows, const SpreadWeights* about, int64_t members,
                    const double* means, double scale, double* gradient, double* values, double* health,
                    int64_t threads) {
  return evaluate_spread(*net, *rows, *about, members, means, scale, gradient, values, health,
                         static_cast<int>(threads));
}

bool leapfrog_float32(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                      float* weights, float* momentum, float* gradient, const float* inverse_mass,
                      const double* step_sizes, const int64_t* steps, double scale, double prior_scale, double* values,
                      double* priors, int64_t threads) {
  return leapfrog(*net, *rows, *prior, space, members, weights, momentum, gradient, inverse_mass, step_sizes, steps, scale,
                  prior_scale, values, priors, static_cast<int>(threads));
}

bool leapfrog_float64(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                      double* weights, double* momentum, double* gradient, const double* inverse_mass,
                      const double* step_sizes, const int64_t* steps, double scale, double prior_scale, double* values,
                      double* priors, int64_t threads) {
  return leapfrog(*net, *rows, *prior, space, members, weights, momentum, gradient, inverse_mass, step_sizes, steps, scale,
                  prior_scale, values, priors, static_cast<int>(threads));
}

bool slice_float32(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                   float* weights, const Ellipses* to, double* values, double* priors, int64_t threads) {
  return slice(*net, *rows, *prior, space, members, weights, *to, values, priors, static_cast<int>(threads));
}

bool trees_float32(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                   float* weights, const float* momentum, float* gradient, const Growth* about, double scale,
                   double prior_scale, int64_t threads) {
  return trees(*net, *rows, *prior, space, members, weights, momentum, gradient, *about, scale, prior_scale,
               static_cast<int>(threads));
}

bool trees_float64(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                   double* weights, const double* momentum, double* gradient, const Growth* about, double scale,
                   double prior_scale, int64_t threads) {
  return trees(*net, *rows, *prior, space, members, weights, momentum, gradient, *about, scale, prior_scale,
               static_cast<int>(threads));
}

void predict_float32(const Network* net, const Rows* rows, const Space* space, int64_t members,
                     const float* weights, int64_t stride, float* outputs, int64_t threads) {
  predict(*net, *rows, space, members, weights, stride, outputs, static_cast<int>(threads));
}

bool slice_float64(const Network* net, const Rows* rows, const Prior* prior, const Space* space, int64_t members,
                   double* weights, const Ellipses* to, double* values, double* priors, int64_t threads) {
  return slice(*net, *rows, *prior, space, members, weights, *to, values, priors, static_cast<int>(threads));
}

void predict_float64(const Network* net, const Rows* rows, const Space* space, int64_t members,
                     const double* weights, int64_t stride, double* outputs, int64_t threads) {
  predict(*net, *rows, space, members, weights, stride, outputs, static_cast<int>(threads));
}

}  // extern "C"

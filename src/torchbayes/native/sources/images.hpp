// Convolutions and pools before a fully connected network: forward and backward pass of a few images.
//
// Values lie pixel by pixel with the channels of a pixel side by side, inside a border of zeros where a convolution pads,
// so that a convolution is one sum over taps t = (row, column, channel) of its window,
//
//     z[p, o] = b[o] + sum_t x[at(p) + t] W[t, o],   dL/dW[t, o] = sum_p x[at(p) + t] g[p, o],
//
// with the weights packed so that channels fill vectors, and no matrix of windows is ever written down. The derivative of
// the input is added up tap by tap, dx[at(p) + t] += sum_o W[t, o] g[p, o], where the border takes what falls outside.
// A block of pixels by two vectors of channels stays in registers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common.hpp"
#include "spread.hpp"
#include "vectors.hpp"

extern "C" {

// The fields of torchbayes.native.description, in order.
struct Stage {
  int64_t kind;
  int64_t in, out;  // channels
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t weights_at, bias_at;  // offsets in the flat vector; -1 where there is none
  int64_t activation;
};

}  // extern "C"

namespace {

enum StageKind : int64_t { kConvolution, kMaximum, kAverage };

// pixels, or taps, of a block: with two vectors of channels they fill half of 32 registers, or most of 16
constexpr int kBlock = kVectorBytes == 64 ? 8 : 4;
// pixels whose values stay in the nearest cache while all taps pass over them
constexpr int64_t kPixelsAtOnce = 96;
// bytes of all that a pass keeps: well inside a core's own cache
constexpr int64_t kBytesAtOnce = 640 * 1024;

// Channels whose sums are formed at once.
struct Panel {
  int64_t first, width;
};

// The panels of so many channels: of two vectors, then one, then half of one, so that few lanes are idle.
template <typename T>
std::vector<Panel> panels(int64_t channels) {
  constexpr int64_t lanes = kFull<T>, half = kFull<T> / 2;
  std::vector<Panel> found;
  for (int64_t c = 0; c < channels; c += found.back().width) {
    const int64_t rest = channels - c;
    found.push_back({c, rest > lanes + half ? 2 * lanes : rest > half ? lanes : half});
  }
  return found;
}

template <typename T>
int64_t panelled(int64_t channels) {
  const Panel last = panels<T>(channels).back();
  return last.first + last.width;
}

// Channels filled up to whole vectors.
template <typename T>
int64_t lined(int64_t channels) {
  return (channels + kFull<T> - 1) / kFull<T> * kFull<T>;
}

// z[to[q]] = bias + sum_t x[from[q] + taps[t]] packed[t] for `count` pixels and one panel of channels.
template <typename T, int kLanes, int kVectors>
void correlate(int64_t count, const int32_t* from, const int32_t* to, const int32_t* taps, int64_t num_taps,
               const T* packed, const T* bias, const T* x, T* z, int64_t valid) {
  constexpr int kSums = kBlock * kVectors, kWidth = kVectors * kLanes;
  for (int64_t q = 0; q < count; q += kBlock) {
    const T* at[kBlock];
    Vector<T, kLanes> sum[kSums];
#pragma GCC unroll 8
    for (int p = 0; p < kBlock; ++p) at[p] = x + from[std::min(q + p, count - 1)];  // the last again in an unfull block
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = bias ? load<kLanes>(bias + i % kVectors * kLanes) : Vector<T, kLanes>{};
    const T* w = packed;
    for (const int32_t* tap = taps; tap != taps + num_taps; ++tap, w += kWidth) {
      const int64_t offset = *tap;
      const Vector<T, kLanes> left = load<kLanes>(w), right = load<kLanes>(w + (kVectors - 1) * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) sum[i] += at[i / kVectors][offset] * (i % kVectors ? right : left);
    }
    if (count - q >= kBlock && valid >= kWidth) {
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) store(z + to[q + i / kVectors] + i % kVectors * kLanes, sum[i]);
      continue;
    }
    T rest[kSums * kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) store(rest + i * kLanes, sum[i]);
    for (int64_t p = 0; p < std::min<int64_t>(kBlock, count - q); ++p)  // what lies behind belongs to a neighbour
      std::copy_n(rest + p * kWidth, std::min<int64_t>(valid, kWidth), z + to[q + p]);
  }
}

// into[t] += sum_q x[x_at[q] + t] g[g_at[q]] for kTaps taps side by side and one panel of channels.
template <typename T, int kLanes, int kVectors, int kTaps>
void accumulate(int64_t count, const int32_t* x_at, const int32_t* g_at, const T* x, const T* g, T* into) {
  constexpr int kSums = kTaps * kVectors;
  Vector<T, kLanes> sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = load<kLanes>(into + i * kLanes);
  for (int64_t q = 0; q < count; ++q) {
    const T *values = x + x_at[q], *slopes = g + g_at[q];
    const Vector<T, kLanes> left = load<kLanes>(slopes), right = load<kLanes>(slopes + (kVectors - 1) * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] += values[i / kVectors] * (i % kVectors ? right : left);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) store(into + i * kLanes, sum[i]);
}

// At most kBlock taps that lie side by side.
struct Run {
  int64_t first, size;
};

// The runs of a list of taps, of nearly equal size where a run is cut.
inline std::vector<Run> runs(const std::vector<int32_t>& taps) {
  const int64_t total = static_cast<int64_t>(taps.size());
  std::vector<Run> found;
  for (int64_t first = 0, end; first < total; first = end) {
    for (end = first + 1; end < total && taps[end] == taps[end - 1] + 1;) ++end;
    const int64_t length = end - first, pieces = (length + kBlock - 1) / kBlock;
    for (int64_t p = 0; p < pieces; ++p)
      found.push_back({first + length * p / pieces, length * (p + 1) / pieces - length * p / pieces});
  }
  return found;
}

// All taps of one panel.
template <typename T, int kLanes, int kVectors>
void accumulate_all(int64_t count, const int32_t* x_at, const int32_t* g_at, const std::vector<int32_t>& taps,
                    const std::vector<Run>& runs, const T* x, const T* g, T* into) {
  static constexpr decltype(&accumulate<T, kLanes, kVectors, 1>) of_size[8] = {
      accumulate<T, kLanes, kVectors, 1>, accumulate<T, kLanes, kVectors, 2>, accumulate<T, kLanes, kVectors, 3>,
      accumulate<T, kLanes, kVectors, 4>, accumulate<T, kLanes, kVectors, 5>, accumulate<T, kLanes, kVectors, 6>,
      accumulate<T, kLanes, kVectors, 7>, accumulate<T, kLanes, kVectors, 8>};
  for (const Run& run : runs)
    of_size[run.size - 1](count, x_at, g_at, x + taps[run.first], g, into + run.first * kVectors * kLanes);
}

// dx[x_at[q] + offset_v] += sum_o g[g_at[q] + o] packed[o, v] for up to two vectors v of channels of some taps.
template <typename T, int kLanes, int kVectors>
void scatter(int64_t count, const int32_t* g_at, const int32_t* x_at, const int32_t* offsets, int64_t channels,
             const T* packed, const T* g, T* dx) {
  constexpr int kSums = kBlock * kVectors;
  for (int64_t q = 0; q < count; q += kBlock) {
    const T* at[kBlock];
    Vector<T, kLanes> sum[kSums];
#pragma GCC unroll 8
    for (int p = 0; p < kBlock; ++p) at[p] = g + g_at[std::min(q + p, count - 1)];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = Vector<T, kLanes>{};
    const T* w = packed;
    for (int64_t o = 0; o < channels; ++o, w += kVectors * kLanes) {
      const Vector<T, kLanes> left = load<kLanes>(w), right = load<kLanes>(w + (kVectors - 1) * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) sum[i] += at[i / kVectors][o] * (i % kVectors ? right : left);
    }
    const int64_t some = std::min<int64_t>(kBlock, count - q);
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {  // one vector after the other: the taps of neighbours meet
      if (i % kBlock >= some) continue;
      T* to = dx + x_at[q + i % kBlock] + offsets[i / kBlock];
      store(to, load<kLanes>(to) + sum[i % kBlock * kVectors + i / kBlock]);
    }
  }
}

// The instance of a function for panels of a width.
template <typename T, typename Function>
Function for_width(int64_t width, Function two, Function one, Function half) {
  return width == 2 * kFull<T> ? two : width == kFull<T> ? one : half;
}
template <typename T>
auto correlate_for(int64_t width) {
  constexpr int lanes = kFull<T>;
  return for_width<T>(width, correlate<T, lanes, 2>, correlate<T, lanes, 1>, correlate<T, lanes / 2, 1>);
}
template <typename T>
auto accumulate_for(int64_t width) {
  constexpr int lanes = kFull<T>;
  return for_width<T>(width, accumulate_all<T, lanes, 2>, accumulate_all<T, lanes, 1>, accumulate_all<T, lanes / 2, 1>);
}

// The channels of a pixel again and again, until there are `count` numbers.
template <typename T>
const T* repeat(const T* from, int64_t channels, int64_t count, T* into) {
  for (int64_t i = 0; i < count; ++i) into[i] = from[i % channels];
  return into;
}

// Where the values of an image lie: those of pixel (h, w) start at base + h row + w column.
struct Plane {
  int64_t height = 0, width = 0, channels = 0, base = 0, row = 0, column = 0, size = 0;

  int64_t at(int64_t h, int64_t w) const { return base + h * row + w * column; }
  bool contiguous() const { return column == channels; }  // rows are runs

  static Plane bordered(int64_t height, int64_t width, int64_t channels, int64_t column, const int64_t* border) {
    const int64_t row = (width + 2 * border[1]) * column;
    return {height, width, channels, border[0] * row + border[1] * column, row, column, (height + 2 * border[0]) * row};
  }
};

// Vectors of input channels of one or two taps, which `scatter` does at once.
struct Group {
  int64_t lanes;
  std::vector<int32_t> offsets;
  std::vector<int64_t> tap, channel;  // of each
};

// The weights of a convolution the way the sums over taps read them, and the sums of their gradient.
template <typename T>
struct Filters {
  T *packed = nullptr, *back_packed = nullptr, *bias = nullptr, *sums = nullptr, *bias_sums = nullptr;
};

// One convolution or pool, for images of known size.
template <typename T>
struct Layer {
  Stage stage;
  Plane in, out;              // values, as the next convolution pads them
  Plane in_slope, out_slope;  // their derivatives, as the convolution before pads them, with channels in whole panels
  std::vector<int32_t> x_at, z_at, g_at, taps;  // pixels of the output, in its input, itself and its derivative
  std::vector<int32_t> dx_at;  // pixels of the output in the derivative of its input
  std::vector<Run> blocks;     // of taps
  std::vector<Group> groups;
  T *value = nullptr, *kept = nullptr, *slope = nullptr;  // of the output
  T *chosen = nullptr;                                    // which of its window a maximum is
  Filters<T> filters, second;  // those of distributions have second ones
  T *other = nullptr, *ratio = nullptr, *other_slope = nullptr, *other_below = nullptr;  // see spread.hpp: y, v, h

  int64_t window() const { return stage.kernel[0] * stage.kernel[1]; }
  int64_t pixels() const { return out.height * out.width; }

  // Side of the output.
  static int64_t side(const Stage& s, int64_t size, int axis) {
    const int64_t reach = s.dilation[axis] * (s.kernel[axis] - 1) + 1;
    return (size + 2 * s.padding[axis] - reach) / s.stride[axis] + 1;
  }

  // Tables of offsets for `rows` images, and groups of taps where the input has a derivative (`deep`).
  void lay_out(int64_t rows, bool deep) {
    const Stage& s = stage;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t h = 0; h < out.height; ++h)
        for (int64_t w = 0; w < out.width; ++w) {
          const int64_t down = h * s.stride[0] - s.padding[0], right = w * s.stride[1] - s.padding[1];
          x_at.push_back(i * in.size + in.at(down, right));
          z_at.push_back(i * out.size + out.at(h, w));
          g_at.push_back(i * out_slope.size + out_slope.at(h, w));
          dx_at.push_back(i * in_slope.size + in_slope.at(down, right));
        }
    for (int64_t h = 0; h < s.kernel[0]; ++h)
      for (int64_t w = 0; w < s.kernel[1]; ++w)
        for (int64_t c = 0; c < (s.kind == kConvolution ? s.in : 1); ++c)
          taps.push_back(h * s.dilation[0] * in.row + w * s.dilation[1] * in.column + c);
    blocks = runs(taps);
    if (s.kind != kConvolution || !deep) return;
    constexpr int64_t full = kFull<T>;
    for (const int64_t lanes : {full, full / 2})
      for (int64_t k = 0, open = 0; k < window(); ++k)
        for (const Panel& panel : panels<T>(s.in))
          for (int64_t c = 0; c < panel.width && std::min(panel.width, full) == lanes; c += lanes, open = !open) {
            if (!open) groups.push_back({lanes, {}, {}, {}});
            const int64_t h = k / s.kernel[1], w = k % s.kernel[1];
            groups.back().offsets.push_back(h * s.dilation[0] * in_slope.row + w * s.dilation[1] * in_slope.column +
                                            panel.first + c);
            groups.back().tap.push_back(k);
            groups.back().channel.push_back(panel.first + c);
          }
  }

  // Arrange the weights the way the sums over taps read them.
  void pack(const T* weights, bool deep, const Filters<T>& to_fill) {
    const Stage& s = stage;
    const auto& [packed, back_packed, bias, sums, bias_sums] = to_fill;
    const int64_t window = this->window(), inner = s.in * window;
    const T* matrix = weights + s.weights_at;
    std::fill_n(packed, panelled<T>(s.out) * inner, T(0));
    for (const Panel& panel : panels<T>(s.out))
      for (int64_t o = 0; o < std::min(s.out - panel.first, panel.width); ++o) {
        const T* from = matrix + (panel.first + o) * inner;
        T* to = packed + panel.first * inner + o;
        for (int64_t k = 0; k < window; ++k)
          for (int64_t c = 0; c < s.in; ++c) to[(k * s.in + c) * panel.width] = from[c * window + k];
      }
    if (s.bias_at >= 0) std::copy_n(weights + s.bias_at, s.out, bias);
    if (!deep) return;
    T* at = back_packed;
    for (const Group& group : groups)
      for (int64_t o = 0; o < s.out; ++o)
        for (size_t v = 0; v < group.tap.size(); ++v)
          for (int64_t c = group.channel[v]; c < group.channel[v] + group.lanes; ++c)
            *at++ = c < s.in ? matrix[(o * s.in + c) * window + group.tap[v]] : T(0);
  }

  // Write the sums of the gradient where they belong.
  void unpack(T* gradient, const Filters<T>& filters) const {
    const Stage& s = stage;
    const int64_t window = this->window(), inner = s.in * window;
    T* matrix = gradient + s.weights_at;
    for (const Panel& panel : panels<T>(s.out))
      for (int64_t o = 0; o < std::min(s.out - panel.first, panel.width); ++o) {
        const T* from = filters.sums + panel.first * inner + o;
        T* to = matrix + (panel.first + o) * inner;
        for (int64_t k = 0; k < window; ++k)
          for (int64_t c = 0; c < s.in; ++c) to[c * window + k] = from[(k * s.in + c) * panel.width];
      }
    if (s.bias_at >= 0) std::copy_n(filters.bias_sums, s.out, gradient + s.bias_at);
  }

  void convolve(int64_t rows, const T* x, const Filters<T>& filters, T* z) {
    const int64_t inner = stage.in * window();
    for (const Panel& panel : panels<T>(stage.out))
      correlate_for<T>(panel.width)(rows * pixels(), x_at.data(), z_at.data(), taps.data(), inner,
                                    filters.packed + panel.first * inner, filters.bias + panel.first, x,
                                    z + panel.first,
                                    stage.out - panel.first);
  }

  // Add to the sums, and write dx unless it is null.
  void convolve_back(int64_t rows, const T* x, const T* slope, const Filters<T>& filters, T* dx) {
    const int64_t inner = stage.in * window(), count = rows * pixels();
    for (int64_t q = 0; q < count; q += kPixelsAtOnce) {
      const int64_t some = std::min(kPixelsAtOnce, count - q);
      for (const Panel& panel : panels<T>(stage.out))
        accumulate_for<T>(panel.width)(some, x_at.data() + q, g_at.data() + q, taps, blocks, x, slope + panel.first,
                                       filters.sums + panel.first * inner);
      if (stage.bias_at < 0) continue;
      for (int64_t c = 0; c < stage.out; c += kFull<T>) {
        Vector<T> sum = load(filters.bias_sums + c);
        for (int64_t p = q; p < q + some; ++p) sum += load(slope + g_at[p] + c);
        store(filters.bias_sums + c, sum);
      }
    }
    if (!dx) return;
    std::fill_n(dx, rows * in_slope.size, T(0));
    const T* part = filters.back_packed;
    for (const Group& group : groups) {
      constexpr int lanes = kFull<T>;
      const bool pair = group.tap.size() == 2;
      const auto run = group.lanes == lanes ? (pair ? scatter<T, lanes, 2> : scatter<T, lanes, 1>)
                                            : (pair ? scatter<T, lanes / 2, 2> : scatter<T, lanes / 2, 1>);
      run(count, g_at.data(), dx_at.data(), group.offsets.data(), stage.out, part, slope, dx);
      part += stage.out * group.lanes * static_cast<int64_t>(group.tap.size());
    }
  }

  // Give noise to the values of a convolution of the inputs x. `spare` holds the noise of an image twice.
  void disturb(int64_t rows, int64_t call, const Spread<T>& spread, const T* x, T* spare) {
    const bool flipped = spread.flipped(call);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = i * in.size;
      if (!flipped) times(in.size, x + at, x + at, other + at);
      if (!flipped) continue;
      const T* signs = repeat(spread.before(call, in.channels) + i * in.channels, in.channels, in.row, spare);
      for (int64_t h = at; h < at + in.size; h += in.row) times(in.row, x + h, signs, other + h);
    }
    convolve(rows, other, second, ratio);
    const int64_t width = out.width * out.channels, size = out.height * width;
    for (int64_t i = 0; i < rows; ++i) {
      T* noise = spare + size;
      if (flipped) {
        repeat(spread.after(call, out.channels) + i * out.channels, out.channels, width, noise);
      } else {
        spread.noise(call, i, 1, size, spare);
        transpose(out.channels, pixels(), spare, pixels(), noise, out.channels);
      }
      for (int64_t h = 0; h < out.height; ++h) {
        const int64_t at = i * out.size + out.at(h, 0);
        if (flipped)
          flip(width, noise, value + at, ratio + at);
        else
          perturb(width, noise + h * width, static_cast<T>(spread.about.least), value + at, ratio + at);
      }
    }
  }

  // Add to the second sums, and to dx unless it is null.
  void disturb_back(int64_t rows, int64_t call, const Spread<T>& spread, const T* x, T* dx) {
    for (int64_t q = 0; q < rows * pixels(); ++q)
      times(out.channels, slope + g_at[q], ratio + z_at[q], other_slope + g_at[q]);
    convolve_back(rows, other, other_slope, second, dx ? other_below : nullptr);
    if (!dx) return;
    const bool flipped = spread.flipped(call);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t h = 0; h < in.height; ++h)
        for (int64_t w = 0; w < in.width; ++w) {
          const int64_t at = i * in_slope.size + in_slope.at(h, w);
          const T* factor = flipped ? spread.before(call, in.channels) + i * in.channels : x + i * in.size + in.at(h, w);
          add_times(in.channels, factor, other_below + at, dx + at);
        }
  }

  void pool(int64_t rows, const T* x) {
    const int64_t count = rows * pixels(), lanes = kFull<T>;
    const T share = T(1) / static_cast<T>(window());
    for (int64_t q = 0; q < count; ++q)
      for (int64_t c = 0; c < stage.out; c += lanes) {
        const T* from = x + x_at[q] + c;
        if (stage.kind == kAverage) {
          Vector<T> sum = {};
          for (int32_t tap : taps) sum += load(from + tap);
          store(value + z_at[q] + c, sum * share, stage.out - c);
          continue;
        }
        Vector<T> top = Vector<T>{} - std::numeric_limits<T>::infinity(), which = {}, number = {};
        for (int32_t tap : taps) {  // the first of equals, and NaN before any number
          const Vector<T> v = load(from + tap);
          const auto more = (v > top) | (v != v);
          top = more ? v : top;
          which = more ? number : which;
          number += T(1);
        }
        store(value + z_at[q] + c, top, stage.out - c);
        store(chosen + q * lined<T>(stage.out) + c, which);
      }
  }

  void pool_back(int64_t rows, T* dx) {
    const int64_t lanes = kFull<T>;
    const T share = T(1) / static_cast<T>(window());
    std::fill_n(dx, rows * in_slope.size, T(0));
    for (int64_t q = 0; q < rows * pixels(); ++q)
      for (int64_t c = 0; c < stage.out; c += lanes) {
        const Vector<T> g = load(slope + g_at[q] + c);
        const Vector<T> which = stage.kind == kMaximum ? load(chosen + q * lined<T>(stage.out) + c) : g;
        Vector<T> number = {};
        for (int64_t h = 0; h < stage.kernel[0]; ++h)
          for (int64_t w = 0; w < stage.kernel[1]; ++w, number += T(1)) {
            T* into = dx + dx_at[q] + h * in_slope.row + w * in_slope.column + c;
            const Vector<T> part = stage.kind == kAverage ? g * share : (which == number ? g : Vector<T>{});
            store(into, load(into) + part, stage.out - c);
          }
      }
  }

  void activate_all(int64_t rows) {
    const auto kind = static_cast<Activation>(stage.activation);
    if (kind == kIdentity) return;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t h = 0; h < out.height; ++h) {
        const int64_t at = i * out.size + out.at(h, 0);
        activate<T>(kind, out.width * out.channels, 1, nullptr, value + at, kept ? kept + at : nullptr);
      }
  }

  void differentiate_all(int64_t rows) {
    const auto kind = static_cast<Activation>(stage.activation);
    if (kind == kIdentity) return;
    const int64_t runs = out_slope.contiguous() ? 1 : out.width, length = out.width * out.channels / runs;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t h = 0; h < out.height; ++h)
        for (int64_t w = 0; w < runs; ++w) {
          const int64_t at = i * out.size + out.at(h, w);
          differentiate<T>(kind, length, value + at, kept ? kept + at : nullptr,
                           slope + i * out_slope.size + out_slope.at(h, w));
        }
  }
};

// The convolutions and pools of a network, with all they keep between the passes of a few images.
template <typename T>
class Front {
 public:
  // Get ready for up to `rows` images of a size at once, under weights that are distributions or not.
  void prepare(const Stage* stages, int64_t count, int64_t height, int64_t width, int64_t rows, bool spread) {
    std::vector<int64_t> key{height, width, spread};
    key.insert(key.end(), reinterpret_cast<const int64_t*>(stages), reinterpret_cast<const int64_t*>(stages + count));
    if (key == key_ && rows <= capacity_) return;  // borders are still zero
    key_.clear();
    stages_.assign(count, {});
    for (int64_t l = 0; l < count; ++l) shape(l, stages, count, height, width);
    input_ = stages_[0].in;
    const Plane& last = stages_.back().out;
    features_ = last.channels * last.height * last.width;
    allocate(rows, spread);
    for (int64_t l = 0; l < count; ++l) stages_[l].lay_out(rows, l > 0);
    key_ = key;
    capacity_ = rows;
  }

  // Take the weights of a network, and forget the sums of the one before.
  void begin(const T* weights, bool gradient, const Spread<T>* spread) {
    for (Layer<T>& layer : stages_) {
      if (layer.stage.kind != kConvolution) continue;
      const bool deep = gradient && &layer != &stages_.front();
      layer.pack(weights, deep, layer.filters);
      if (spread) layer.pack(spread->weights, deep, layer.second);
      if (!gradient) continue;
      clear(layer, layer.filters);
      if (spread) clear(layer, layer.second);
    }
  }

  // Return what the linear layers see, (rows, features), of images (rows, channels, height, width).
  const T* forward(const T* images, int64_t rows, const Spread<T>* spread) {
    const Plane& in = input_;
    const int64_t area = in.height * in.width;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < in.channels; ++c)
        for (int64_t h = 0; h < in.height; ++h) {
          const T* from = images + (i * in.channels + c) * area + h * in.width;
          T* to = pixels_ + i * in.size + in.at(h, 0) + c;
          for (int64_t w = 0; w < in.width; ++w) to[w * in.channels] = from[w];
        }
    const T* x = pixels_;
    int64_t call = 0;
    for (Layer<T>& layer : stages_) {
      const bool convolution = layer.stage.kind == kConvolution;
      convolution ? layer.convolve(rows, x, layer.filters, layer.value) : layer.pool(rows, x);
      if (convolution && spread) layer.disturb(rows, call++, *spread, x, spare_);
      layer.activate_all(rows);
      x = layer.value;
    }
    const Layer<T>& last = stages_.back();
    for (int64_t i = 0; i < rows; ++i)
      transpose(last.pixels(), last.stage.out, x + i * last.out.size, last.stage.out, flat_ + i * features_,
               last.pixels());
    return flat_;
  }

  // Receives the derivative with respect to what `forward` returned.
  T* slopes() { return flat_slope_; }

  // Add to the sums what follows from `slopes()`.
  void backward(int64_t rows, const Spread<T>* spread) {
    const Layer<T>& last = stages_.back();
    const Plane& plane = last.out_slope;
    const int64_t channels = last.stage.out, runs = plane.contiguous() ? 1 : plane.width;
    for (int64_t i = 0; i < rows; ++i) {
      T* from = flat_ + i * features_;  // not needed any more
      transpose(channels, last.pixels(), flat_slope_ + i * features_, last.pixels(), from, channels);
      for (int64_t h = 0; h < plane.height; ++h)
        for (int64_t w = 0; w < runs; ++w, from += plane.width * channels / runs)
          std::copy_n(from, plane.width * channels / runs, last.slope + i * plane.size + plane.at(h, w));
    }
    int64_t call = 0;
    for (const Layer<T>& layer : stages_) call += layer.stage.kind == kConvolution;
    for (int64_t l = size() - 1; l >= 0; --l) {
      Layer<T>& layer = stages_[l];
      layer.differentiate_all(rows);
      T* below = l ? stages_[l - 1].slope : nullptr;
      const T* x = l ? stages_[l - 1].value : pixels_;
      if (layer.stage.kind != kConvolution) {
        layer.pool_back(rows, below);
        continue;
      }
      layer.convolve_back(rows, x, layer.slope, layer.filters, below);
      if (spread) layer.disturb_back(rows, --call, *spread, x, below);
    }
  }

  // Write the sums to where they belong.
  void finish(T* gradient, const Spread<T>* spread) const {
    for (const Layer<T>& layer : stages_) {
      if (layer.stage.kind != kConvolution) continue;
      layer.unpack(gradient, layer.filters);
      if (spread) layer.unpack(spread->gradient, layer.second);
    }
  }

  // Rows that keep what a pass needs inside a core's own cache, where it needs `times` as much as usual.
  static int64_t rows_at_once(const Stage* stages, int64_t count, int64_t height, int64_t width, int64_t times) {
    int64_t bytes = 0;
    for (int64_t l = 0; l < count; ++l) {
      bytes += (height + stages[l].padding[0]) * (width + stages[l].padding[1]) * stages[l].in * sizeof(T);
      height = Layer<T>::side(stages[l], height, 0);
      width = Layer<T>::side(stages[l], width, 1);
      bytes += 2 * height * width * stages[l].out * sizeof(T);
    }
    return std::clamp<int64_t>(kBytesAtOnce / (times * bytes), 4, 64);
  }

 private:
  std::vector<Layer<T>> stages_;
  std::vector<int64_t> key_;
  Aligned<T> memory_;
  Plane input_;
  T *pixels_ = nullptr, *flat_ = nullptr, *flat_slope_ = nullptr, *spare_ = nullptr;
  int64_t features_ = 0, capacity_ = 0;

  int64_t size() const { return static_cast<int64_t>(stages_.size()); }

  static void clear(const Layer<T>& layer, const Filters<T>& filters) {
    std::fill_n(filters.sums, panelled<T>(layer.stage.out) * layer.stage.in * layer.window(), T(0));
    std::fill_n(filters.bias_sums, lined<T>(layer.stage.out), T(0));
  }

  // Planes of stage l and of the border its input needs.
  void shape(int64_t l, const Stage* stages, int64_t count, int64_t height, int64_t width) {
    Layer<T>& layer = stages_[l];
    const Stage& s = layer.stage = stages[l];
    layer.in = l ? stages_[l - 1].out : Plane::bordered(height, width, s.in, s.in, s.padding);
    if (l) layer.in_slope = stages_[l - 1].out_slope;
    const int64_t sides[2] = {Layer<T>::side(s, layer.in.height, 0), Layer<T>::side(s, layer.in.width, 1)};
    const int64_t none[2] = {0, 0};
    const int64_t* border = l + 1 < count ? stages[l + 1].padding : none;
    layer.out = Plane::bordered(sides[0], sides[1], s.out, s.out, border);
    layer.out_slope = Plane::bordered(sides[0], sides[1], s.out, panelled<T>(s.out), border);
  }

  // Zeroed memory for everything; vectors may read past the last channel of the last pixel.
  void allocate(int64_t rows, bool spread) {
    T* at = nullptr;
    int64_t total = 0;
    const auto take = [&](T*& piece, int64_t count) {
      piece = at ? at + total : nullptr;
      total += Aligned<T>::padded(count + 2 * kFull<T>);
    };
    const auto all = [&] {
      total = 0;
      int64_t most = 0;
      take(pixels_, rows * input_.size);
      take(flat_, rows * features_);
      take(flat_slope_, rows * features_);
      for (Layer<T>& layer : stages_) {
        const Stage& s = layer.stage;
        take(layer.value, rows * layer.out.size);
        take(layer.slope, rows * layer.out_slope.size);
        if (s.activation == kSilu) take(layer.kept, rows * layer.out.size);
        if (s.kind == kMaximum) take(layer.chosen, rows * layer.pixels() * lined<T>(s.out));
        if (s.kind != kConvolution) continue;
        for (Filters<T>* filters : {&layer.filters, &layer.second}) {
          if (filters == &layer.second && !spread) break;
          take(filters->packed, panelled<T>(s.out) * s.in * layer.window());
          take(filters->back_packed, panelled<T>(s.in) * s.out * layer.window());
          take(filters->sums, panelled<T>(s.out) * s.in * layer.window());
          take(filters->bias, lined<T>(s.out));
          take(filters->bias_sums, lined<T>(s.out));
        }
        if (!spread) continue;
        take(layer.other, rows * layer.in.size);
        take(layer.ratio, rows * layer.out.size);
        take(layer.other_slope, rows * layer.out_slope.size);
        take(layer.other_below, rows * layer.in_slope.size);
        most = std::max({most, 2 * layer.pixels() * s.out, layer.in.row});
      }
      if (spread) take(spare_, most);
    };
    all();
    at = memory_.at_least(total);
    std::fill_n(at, total, T(0));
    all();
  }
};

template <typename T>
Front<T>& front() {
  static thread_local Front<T> own;
  return own;
}

}  // namespace

// Standard normal numbers that are a pure function of (seed, stream, position): what the kernels that draw share.
//
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011) turns the key (seed) and the counter (block, stream) into four
// words of 32 bits. The method of Box and Muller (1958) turns two uniform numbers into two normal ones:
//
//     z0 = sqrt(-2 log u1) cos(2 pi u2),   z1 = sqrt(-2 log u1) sin(2 pi u2).
//
// A block gives four float32 numbers, from (w0, w1) and (w2, w3): u1 = (w0 + 1/2) / 2^32, u2 = w1 / 2^32, so that
// |z| <= sqrt(66 log 2) = 6.7637. Or it gives two float64 numbers: u1 = (n + 1/2) / 2^52 with n the top 52 bits of
// w0 w1, u2 = the top 53 bits of w2 w3 over 2^53, so that |z| <= sqrt(106 log 2) = 8.5717. u1 is never 0, and never 1.
//
// Logarithm, sine and cosine are minimax polynomials without branches, so that loops are vectorised. Only operations
// that IEEE 754 rounds in one way are used (+ - * / sqrt and conversions), in a fixed order; compiled without
// contraction to fused multiply-adds, the results are the same bits on every processor, and those of the tensor
// operations of noise.py.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;
// blocks whose words stay in the first cache between Philox and Box-Muller; a multiple of every number of lanes
constexpr int64_t kBlocks = 256;
// numbers from which threads are worth waking
constexpr int64_t kTogether = 16384;

// Words of several blocks side by side, each in a lane of 64 bits whose upper half is ignored: that is what the
// instruction for 32 x 32 -> 64 bits takes and gives. Plain C++ leaves half of the speed.
#if defined(__AVX512F__)
constexpr int kLanes = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 2;
#endif
using Lanes = uint64_t __attribute__((vector_size(8 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));

inline Lanes all(uint64_t value) { return Lanes{} + value; }

inline Lanes multiply(Lanes a, uint64_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(all(b))));
#elif defined(__AVX2__)
  return reinterpret_cast<Lanes>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(all(b))));
#else
  return (a & 0xffffffffu) * b;
#endif
}

// The words of blocks first, first + 1, ..., first + count - 1, rounded up to whole lanes.
void philox_blocks(uint64_t first, uint64_t stream, uint64_t seed, int64_t count, uint32_t (*words)[kBlocks]) {
  Lanes lane{};
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
  for (int64_t at = 0; at < count; at += kLanes) {
    Lanes c0 = all(first + at) + lane, c1 = c0 >> 32, c2 = all(stream), c3 = all(stream >> 32);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
      const Lanes p0 = multiply(c0, kMultiplier0), p1 = multiply(c2, kMultiplier1);
      c0 = (p1 >> 32) ^ c1 ^ all(k0);
      c2 = (p0 >> 32) ^ c3 ^ all(k1);
      c1 = p1;
      c3 = p0;
      k0 += kWeyl0;
      k1 += kWeyl1;
    }
    const Words made[4] = {__builtin_convertvector(c0, Words), __builtin_convertvector(c1, Words),
                           __builtin_convertvector(c2, Words), __builtin_convertvector(c3, Words)};
    for (int w = 0; w < 4; ++w) std::memcpy(words[w] + at, made + w, sizeof(Words));
  }
}

template <typename To, typename From>
inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To same;
  std::memcpy(&same, &value, sizeof same);
  return same;
}

template <typename T>
struct Format;

template <>
struct Format<float> {
  using Word = uint32_t;
  static constexpr int kFraction = 23, kRadius = 32, kAngle = 32;  // bits of a fraction, of u1 and of u2
  static constexpr Word kRootHalf = 0x3f3504f3;                    // of sqrt(1/2)
  static constexpr float kLog[] = {0.333333433f, 0.199943587f, 0.147910759f};
  static constexpr float kSine[] = {0.785398185f, -0.0807454363f, 0.00249000709f, -3.59545083e-05f};
  static constexpr float kCosine[] = {1.0f, -0.308425128f, 0.0158543382f, -0.000325961388f, 3.54196686e-06f};

  static float rounded(Word n) { return static_cast<float>(n); }
  static float integer(Word n) { return static_cast<float>(static_cast<int32_t>(n)); }
  static float difference(Word n, Word m) { return static_cast<float>(static_cast<int32_t>(n - m)); }
};

template <>
struct Format<double> {
  using Word = uint64_t;
  static constexpr int kFraction = 52, kRadius = 52, kAngle = 53;
  static constexpr Word kRootHalf = 0x3fe6a09e667f3bcd;
  static constexpr double kLog[] = {0.3333333333333335,  0.19999999999949222, 0.1428571431319992, 0.11111105536377174,
                                    0.09091446612256726, 0.0766579839009192,  0.07308937390251663};
  static constexpr double kSine[] = {0.7853981633974483,    -0.08074551218828054,  0.002490394570188846,
                                     -3.6576204158923915e-05, 3.133616225626818e-07, -1.7571500918839738e-09,
                                     6.877366300710867e-12};
  static constexpr double kCosine[] = {1.0,
                                       -0.30842513753404244,
                                       0.015854344243815488,
                                       -0.0003259918869271997,
                                       3.5908604474490503e-06,
                                       -2.4611366239154325e-08,
                                       1.1500679775988635e-10,
                                       -3.863159449975978e-13};

  // below 2^52 the integer is the fraction of 2^52 + n: converts in vectors on every processor
  static double rounded(Word n) { return bits<double>(n | 0x4330000000000000) - 0x1p52; }
  static double integer(Word n) { return rounded(n); }
  static double difference(Word n, Word m) { return rounded(n) - rounded(m); }
};

template <typename T, std::size_t terms>
inline T polynomial(const T (&coefficients)[terms], T x) {
  T sum = coefficients[terms - 1];
#pragma GCC unroll 8
  for (std::size_t k = terms - 1; k > 0; --k) sum = sum * x + coefficients[k - 1];
  return sum;
}

// -2 log u for u = (n + 1/2) / 2^kRadius = m 2^-e, with m in [sqrt(1/2), sqrt(2)) and f = m - 1:
// log m = 2 s (1 + s^2 P(s^2)), s = f / (2 + f).
template <typename T>
inline T squared_radius(typename Format<T>::Word n) {
  using F = Format<T>;
  using Word = typename F::Word;
  constexpr Word one = Word(1) << F::kFraction;
  const Word shifted = bits<Word>(F::rounded(n) + T(0.5)) - (F::kRootHalf - one);
  const T e = F::integer(Word(F::kRadius + 1) - (shifted >> F::kFraction));
  T f = bits<T>((shifted & (one - 1)) + F::kRootHalf) - T(1);
  if constexpr (sizeof(T) == 4) {  // n is rounded: close to u = 1 the exact difference keeps all digits, and f below 0
    const T below = (F::rounded(~n) + T(0.5)) * T(-0x1p-32);
    f = e == T(0) ? below : f;
  }
  const T s = f / (f + T(2)), z = s * s;
  return e * T(1.3862943611198906) - T(4) * (s + s * (z * polynomial(F::kLog, z)));
}

// n / 2^kAngle of a turn is a whole number of quarters and y in [-1, 1) half quarters: sine and cosine of pi/4 y are
// swapped in odd quarters; the cosine is negative in quarters 1 and 2, the sine in 2 and 3.
template <typename T>
inline void box_muller(typename Format<T>::Word n, typename Format<T>::Word angle, T* z0, T* z1) {
  using F = Format<T>;
  using Word = typename F::Word;
  constexpr Word quarter = Word(1) << (F::kAngle - 2), half = quarter / 2, sign = Word(1) << (8 * sizeof(T) - 1);
  constexpr int to_sign = 8 * sizeof(T) - F::kAngle;
  const T radius = std::sqrt(squared_radius<T>(n));
  const Word turned = angle + half;
  const T y = F::difference(turned & (quarter - 1), half) * (T(1) / T(half)), square = y * y;
  const T sine = y * polynomial(F::kSine, square), cosine = polynomial(F::kCosine, square);
  const bool odd = (turned & quarter) != 0;
  const T first = radius * (odd ? sine : cosine), second = radius * (odd ? cosine : sine);
  *z0 = bits<T>(bits<Word>(first) ^ (((turned + quarter) << to_sign) & sign));
  *z1 = bits<T>(bits<Word>(second) ^ ((turned << to_sign) & sign));
}

inline void numbers(const uint32_t (*words)[kBlocks], int64_t blocks, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < blocks; ++i) {
    box_muller(words[0][i], words[1][i], out + 4 * i, out + 4 * i + 1);
    box_muller(words[2][i], words[3][i], out + 4 * i + 2, out + 4 * i + 3);
  }
}

inline void numbers(const uint32_t (*words)[kBlocks], int64_t blocks, double* out) {
#pragma omp simd
  for (int64_t i = 0; i < blocks; ++i) {
    const uint64_t n = static_cast<uint64_t>(words[0][i]) << 20 | words[1][i] >> 12;
    const uint64_t angle = static_cast<uint64_t>(words[2][i]) << 21 | words[3][i] >> 11;
    box_muller(n, angle, out + 2 * i, out + 2 * i + 1);
  }
}

// The numbers of positions at, at + 1, ..., at + count - 1, at most kBlocks blocks of them from the start of one.
template <typename T>
inline void normals(T* out, int64_t at, int64_t count, uint64_t seed, uint64_t stream) {
  constexpr int64_t per_block = 16 / sizeof(T), most = kBlocks * per_block;
  const int64_t blocks = (count + per_block - 1) / per_block;
  alignas(64) uint32_t words[4][kBlocks];
  philox_blocks(at / per_block, stream, seed, blocks, words);
  if (count == blocks * per_block) {
    numbers(words, blocks, out);
    return;
  }
  alignas(64) T spare[most];
  numbers(words, blocks, spare);
  std::copy_n(spare, count, out);
}

}  // namespace

// Rows of standard normal numbers (normal.hpp).

#include <algorithm>
#include <cstdint>

#include "normal.hpp"

namespace {

// `rows` rows of `size` numbers, each from position 0 of its own seed.
template <typename T>
void fill_normal(T* out, int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream, int threads) {
  constexpr int64_t most = kBlocks * (16 / sizeof(T));
  const int64_t pieces = (size + most - 1) / most;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * size >= kTogether)
  for (int64_t piece = 0; piece < rows * pieces; ++piece) {
    const int64_t row = piece / pieces, at = piece % pieces * most;
    normals(out + row * size + at, at, std::min(most, size - at), seeds[row], stream);
  }
}

// The numbers of positions at, at + 1, ..., at + count - 1 of one row.
template <typename T>
void normals_from(T* out, int64_t at, int64_t count, uint64_t seed, uint64_t stream) {
  constexpr int64_t per_block = 16 / sizeof(T), most = kBlocks * per_block;
  const int64_t skipped = at % per_block;
  if (skipped) {  // from within a block
    alignas(64) T spare[per_block];
    normals(spare, at - skipped, per_block, seed, stream);
    const int64_t some = std::min(count, per_block - skipped);
    std::copy_n(spare + skipped, some, out);
    out += some, at += some, count -= some;
  }
  for (; count > 0; out += most, at += most, count -= most) normals(out, at, std::min(count, most), seed, stream);
}

}  // namespace

extern "C" {

// The four words of one block: for known answers.
void philox(const uint32_t* counter, const uint32_t* key, uint32_t* block) {
  const auto joined = [](const uint32_t* half) { return static_cast<uint64_t>(half[1]) << 32 | half[0]; };
  uint32_t words[4][kBlocks];
  philox_blocks(joined(counter), joined(counter + 2), joined(key), 1, words);
  for (int w = 0; w < 4; ++w) block[w] = words[w][0];
}

// 1 or -1 for each bit of the words, those of a block one after the other.
void fill_signs(float* out, int64_t size, const uint64_t* seed, uint64_t stream) {
  constexpr int64_t kWord = 32, kBlock = 4 * kWord;
  uint32_t words[4][kBlocks];
  for (int64_t at = 0; at < size; at += kBlocks * kBlock) {
    const int64_t count = std::min(kBlocks * kBlock, size - at);
    philox_blocks(at / kBlock, stream, *seed, (count + kBlock - 1) / kBlock, words);
    for (int64_t first = 0; first < count; first += kWord) {
      const uint32_t word = words[first / kWord % 4][first / kBlock];
      const int64_t some = std::min(kWord, count - first);
      for (int64_t i = 0; i < some; ++i) out[at + first + i] = bits<float>(0x3f800000u | ((word >> i & 1u) << 31));
    }
  }
}

void normals_float32(float* out, int64_t at, int64_t count, uint64_t seed, uint64_t stream) {
  normals_from(out, at, count, seed, stream);
}

void normals_float64(double* out, int64_t at, int64_t count, uint64_t seed, uint64_t stream) {
  normals_from(out, at, count, seed, stream);
}

void fill_normal_float32(float* out, int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream,
                         int64_t threads) {
  fill_normal(out, rows, size, seeds, stream, static_cast<int>(threads));
}

void fill_normal_float64(double* out, int64_t rows, int64_t size, const uint64_t* seeds, uint64_t stream,
                         int64_t threads) {
  fill_normal(out, rows, size, seeds, stream, static_cast<int>(threads));
}

}  // extern "C"

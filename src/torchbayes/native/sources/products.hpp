// Matrix products of linear layers, by the BLAS inside PyTorch's own library, whose entry points are passed as pointers.
//
// In the column-major terms of BLAS a (rows, width) matrix of activations has each feature's rows side by side, and a
// weight matrix W of PyTorch is (fan_in, fan_out). Inputs of a network, and what images become before the first linear
// layer, lie row by row instead (`by_rows`): the same memory is a (width, rows) matrix.

#pragma once

#include <algorithm>
#include <cstdint>

namespace {

using Gemm32 = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                        const int*, const float*, const int*, const float*, float*, const int*);
using Gemm64 = void (*)(const char*, const char*, const int*, const int*, const int*, const double*, const double*,
                        const int*, const double*, const int*, const double*, double*, const int*);
Gemm32 gemm32 = nullptr;
Gemm64 gemm64 = nullptr;
int (*set_threads)(int) = nullptr;  // of the products that this thread calls; returns what it was

inline void gemm(const char* ta, const char* tb, int m, int n, int k, const float* a, int lda, const float* b, int ldb,
                 float beta, float* c, int ldc) {
  const float one = 1.0f;
  gemm32(ta, tb, &m, &n, &k, &one, a, &lda, b, &ldb, &beta, c, &ldc);
}

inline void gemm(const char* ta, const char* tb, int m, int n, int k, const double* a, int lda, const double* b,
                 int ldb, double beta, double* c, int ldc) {
  const double one = 1.0;
  gemm64(ta, tb, &m, &n, &k, &one, a, &lda, b, &ldb, &beta, c, &ldc);
}

// Products with a layer of one input or one output, for which a call of BLAS takes longer than the sums.

// c(rows, width) = a(rows, 1) b(1, width)
template <typename T>
void outer(int64_t rows, int64_t width, const T* a, const T* b, T* c) {
  for (int64_t j = 0; j < width; ++j)
#pragma omp simd
    for (int64_t i = 0; i < rows; ++i) c[j * rows + i] = a[i] * b[j];
}

// c(rows) = a(rows, width) b(width)
template <typename T>
void combined(int64_t rows, int64_t width, const T* a, const T* b, T* c) {
  std::fill_n(c, rows, T(0));
  for (int64_t j = 0; j < width; ++j)
#pragma omp simd
    for (int64_t i = 0; i < rows; ++i) c[i] += a[j * rows + i] * b[j];
}

// c(width) = beta c(width) + a(rows, width)^T b(rows); the sums of the columns of a if b is null
template <typename T>
void projected(int64_t rows, int64_t width, const T* a, const T* b, bool first, T* c) {
  for (int64_t j = 0; j < width; ++j) {
    T sum = T(0);
    if (b) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < rows; ++i) sum += a[j * rows + i] * b[i];
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < rows; ++i) sum += a[j * rows + i];
    }
    c[j] = first ? sum : c[j] + sum;
  }
}

// z = a W
template <typename T>
void multiply(int64_t rows, int64_t in, int64_t out, const T* a, bool by_rows, const T* matrix, T* z) {
  if (in == 1)
    outer(rows, out, a, matrix, z);
  else if (by_rows)
    gemm("T", "N", rows, out, in, a, in, matrix, in, T(0), z, rows);
  else if (out == 1)
    combined(rows, in, a, matrix, z);
  else
    gemm("N", "N", rows, out, in, a, rows, matrix, in, T(0), z, rows);
}

// into = a^T g, or into += a^T g unless `first`
template <typename T>
void by_matrix(int64_t rows, int64_t in, int64_t out, const T* a, bool by_rows, const T* g, bool first, T* into) {
  const T beta = first ? T(0) : T(1);
  if (in == 1)
    projected(rows, out, g, a, first, into);
  else if (by_rows)
    gemm("N", "N", in, out, rows, a, in, g, rows, beta, into, in);
  else if (out == 1)
    projected(rows, in, a, g, first, into);
  else
    gemm("T", "N", in, out, rows, a, rows, g, rows, beta, into, in);
}

// into = g W^T
template <typename T>
void by_inputs(int64_t rows, int64_t in, int64_t out, const T* g, const T* matrix, bool by_rows, T* into) {
  if (by_rows)
    gemm("N", "T", in, rows, out, matrix, in, g, rows, T(0), into, in);
  else if (out == 1)
    outer(rows, in, g, matrix, into);
  else
    gemm("N", "T", rows, in, out, g, rows, matrix, in, T(0), into, rows);
}

}  // namespace

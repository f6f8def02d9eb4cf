// The places of tokens in their sequences, as kernels of compressed attention read them.
#pragma once

#include "witan/kernels/attention/compressed_attention.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

struct Place {
  int row, begin, position;

  __device__ bool padding() const { return position < 0; }
  __device__ int first_entry(int m) const { return (begin + m - 1) / m; }
  __device__ int entries(int m) const { return (position + 1) / m; }  // that the token sees
};

struct Places {
  explicit Places(const SequencePlaces& of)
      : rows(ptr<const int32_t>(of.rows)),
        begins(ptr<const int32_t>(of.begins)),
        positions(ptr<const int32_t>(of.positions)),
        tokens(of.rows.elements()) {}

  __device__ Place operator[](int64_t t) const { return {rows[t], begins[t], positions[t]}; }

  const int32_t *rows, *begins, *positions;
  int64_t tokens;
};

}  // namespace witan::kernels::cuda

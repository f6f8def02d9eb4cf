// The stable counting sort of assignments by expert, which both the send order and expert capacity begin with.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

struct ExpertOrder {
  const int32_t* ids;     // [assignments] in [0, experts), or -1: no row
  const int64_t* counts;  // [experts], their histogram
  int64_t* slot;          // [assignments] the row of each, or null
  int64_t* source;        // [rows] the assignment in each row, -1 after the last
  int64_t assignments, rows;
  int experts;
  int64_t *begin = nullptr, *count = nullptr;  // [experts] the first row and the number of rows of each, or null
  // The weight of each assignment and, to be written, of each row, 0 after the last; null: there are none.
  const float* weights = nullptr;
  float* row_weights = nullptr;
};
// Uses the stream's scratch memory.
void order_by_expert(Stream& stream, const ExpertOrder& order);

}  // namespace witan::kernels::cuda

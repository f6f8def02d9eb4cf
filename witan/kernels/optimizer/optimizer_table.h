// The tables by which one kernel updates, or sums, many tensors: rows as a GPU reads them.
#pragma once

#include <algorithm>
#include <array>

#include "witan/kernels/optimizer/optimizer.h"

namespace witan::kernels {

// Chunks of an update: what a block does between two looks at the table.
inline constexpr int64_t kUpdateChunk = 1 << 11;
constexpr int64_t update_chunks_of(int64_t elements) {
  return (elements + kUpdateChunk - 1) / kUpdateChunk;
}

// Rows are grouped by the dtypes of value and gradient, for each of which there is a kernel.
struct UpdateRow {
  int64_t value, remainder, state[kMostStates], gradient;  // addresses; 0 of what there is not
  int64_t elements;
  int64_t first_chunk;  // within the group
  double weight_decay;
};
static_assert(sizeof(UpdateRow) == kUpdateColumns * sizeof(int64_t));

// Steps that must be known before one is found to be a spike.
constexpr int64_t spike_steps_needed(int64_t window) {
  return std::max<int64_t>(2, window / 2 - 1);
}

struct SquareSumsRow {
  int64_t x;                 // address
  int64_t elements, chunks;  // of a piece
  int64_t first_chunk;       // of the first piece, counted over all rows
  int64_t first_row;         // of the sums
  int64_t dtype;
};
static_assert(sizeof(SquareSumsRow) == kSquareSumsColumns * sizeof(int64_t));

// body(value's dtype, gradient's dtype) for each pair among the items, in the order of the table's groups.
template <class Body>
void for_update_kinds(std::span<const UpdateItem> items, const Body& body) {
  for (const DType value : {DType::bf16, DType::f16, DType::f32, DType::f64})
    for (const DType gradient : {DType::bf16, DType::f32, DType::f64})
      if (std::ranges::any_of(items, [&](const UpdateItem& item) {
            return item.tensors.value.dtype() == value && item.tensors.gradient.dtype() == gradient;
          }))
        body(value, gradient);
}

}  // namespace witan::kernels

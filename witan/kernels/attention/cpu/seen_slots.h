// The slots of keys that a token sees (kernels/attention/sparse_attention.h).
#pragma once

#include "witan/kernels/attention/sparse_attention.h"

namespace witan::kernels::cpu {

struct SeenSlots {
  SeenSlots(const KeyRows& where, int64_t t)
      : row(where.row_of.defined() ? where.row_of.data<int32_t>()[t] : (where.first + t) / where.slots),
        last(where.positions.defined() ? where.positions.data<int32_t>()[t] : (where.first + t) % where.slots),
        ids(where.ids.defined() ? where.ids.data<int32_t>() + row * where.slots : nullptr) {}

  bool sees(int64_t j) const { return j <= last && (ids == nullptr || ids[j] == ids[last]); }

  int64_t row, last;
  const int32_t* ids;  // of the row; null: it is one document
};

}  // namespace witan::kernels::cpu

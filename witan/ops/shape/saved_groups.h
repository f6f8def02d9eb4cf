// Saves row groups for the backward.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

class SavedGroups {
 public:
  SavedGroups(Tape& tape, const RowGroups& groups)
      : begin_(save(tape, groups.begin)),
        count_(save(tape, groups.count)),
        source_begin_(save(tape, groups.source_begin)),
        source_count_(save(tape, groups.source_count)),
        expected_rows_(groups.expected_rows) {}

  RowGroups value(Backward& b) const {
    return {b.value(begin_), b.value(count_), b.value(source_begin_), b.value(source_count_), expected_rows_};
  }

 private:
  static Saved save(Tape& tape, const Tensor& tensor) { return tensor.defined() ? tape.save(tensor) : Saved(); }

  Saved begin_, count_, source_begin_, source_count_;
  int64_t expected_rows_;
};

}  // namespace witan::ops

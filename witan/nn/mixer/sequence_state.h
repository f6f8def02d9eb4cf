// A token mixer's memory of sequences while they are generated: keys and values, the running state of a recurrence, the
// tail of a convolution. A state has a row for each sequence; TokenMixer::decode() reads and extends the rows that
// a step names.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan {

// The number of sequences, and their lengths, that a state has room for.
struct StateSize {
  int64_t rows = 1;       // sequences
  int64_t positions = 0;  // of the longest
  // Layers with a window keep all positions too: kernels that repeat the bits of the training forward on a GPU read
  // them.
  bool all_positions = false;
};

// The memory that one sequence takes in a state.
struct StateBytes {
  int64_t fixed = 0;         // of any sequence, however short
  int64_t per_position = 0;  // of each position that is kept
  int64_t positions = 0;     // the most that are kept, of a StateSize

  int64_t of_row() const { return fixed + per_position * positions; }
};

class SequenceState {
 public:
  SequenceState() = default;
  virtual ~SequenceState() = default;
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  virtual int64_t bytes() const = 0;  // of all rows

  // A row has read `held` tokens, and since a text began there `reach` positions have been written, which is more where
  // a longer text was cut. Returns the largest number of first tokens, at most `wanted`, after which the row can go on
  // as if it had read no others; 0: the text must begin anew. Keys and values can be cut anywhere, the state of a
  // recurrence nowhere. decode() cuts a row when it is given tokens at an earlier position.
  virtual int64_t resumable(int64_t wanted, int64_t held, int64_t reach) const = 0;

  // Copies row `from` to row `to`, which then goes on by itself: sampling in parallel and beams begin so.
  virtual void copy_row(Stream& stream, int64_t from, int64_t to) = 0;
};

// One for each layer; null: the layer keeps nothing.
using SequenceStates = std::vector<std::unique_ptr<SequenceState>>;

// The largest number of first tokens, at most `wanted`, after which a row of all layers' states can go on
// (SequenceState::resumable).
int64_t resumable(const SequenceStates& states, int64_t wanted, int64_t held, int64_t reach);

void copy_row(Stream& stream, const SequenceStates& states, int64_t from, int64_t to);

}  // namespace witan

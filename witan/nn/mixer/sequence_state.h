// The state of sequences that a token mixer keeps during generation: keys and values, the running state of a
// recurrence, the tail of a convolution. It has a row for each sequence; TokenMixer::decode() reads and extends the
// rows that a step names.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan {

// The form of attention's caches. By default they hold the keys and values of its heads in the model's dtype.
struct CacheFormat {
  bool latents = false;  // multi-head latent attention caches latents (nn/attention/latent.h)
  bool fp8 = false;      // in e4m3, with scales (kernels/attention/kv_cache.h)

  bool operator==(const CacheFormat&) const = default;
};

// The capacity of a state: the number of sequences, and their lengths.
struct StateSize {
  int64_t rows = 1;       // sequences
  int64_t positions = 0;  // of the longest
  // Layers with a window keep all positions too, for kernels that repeat the bits of the training forward on a GPU.
  bool all_positions = false;
  // Recurrent layers keep the inputs of each row's last chunk too, for kernels that repeat the bits of the training
  // forward.
  bool chunks = false;
  CacheFormat cache = {};
};

// The memory that one sequence takes in a state.
struct StateBytes {
  int64_t fixed = 0;         // for any sequence, however short
  int64_t per_position = 0;  // for each position that is kept
  int64_t positions = 0;     // the most positions that are kept with a StateSize

  int64_t of_row() const { return fixed + per_position * positions; }
};

class SequenceState {
 public:
  SequenceState() = default;
  virtual ~SequenceState() = default;
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  virtual int64_t bytes() const = 0;  // of all rows

  // A row holds `held` tokens, and `reach` positions have been written since its text began, which is more if a longer
  // text was cut. Returns the largest number of first tokens, at most `wanted`, from which the row can continue as if
  // it had read no others; 0: the text must begin anew. Keys and values can be cut anywhere, the state of a recurrence
  // nowhere. decode() cuts a row when it gets tokens at an earlier position.
  virtual int64_t resumable(int64_t wanted, int64_t held, int64_t reach) const = 0;

  // Whether a step of one token per row, with hints.batch_invariant, launches the same kernels whatever the positions,
  // so that a CUDA graph can repeat it. Other steps of one token per row always do.
  virtual bool repeats_batch_invariant_steps() const { return false; }

  // Copies row `from` to row `to`, which then continues by itself, for parallel sampling and beams.
  virtual void copy_row(Stream& stream, int64_t from, int64_t to) = 0;
};

// The state of each layer; null if the layer keeps none.
using SequenceStates = std::vector<std::unique_ptr<SequenceState>>;

// The largest number of first tokens, at most `wanted`, from which a row of all layers' states can continue
// (SequenceState::resumable).
int64_t resumable(const SequenceStates& states, int64_t wanted, int64_t held, int64_t reach);

void copy_row(Stream& stream, const SequenceStates& states, int64_t from, int64_t to);

}  // namespace witan

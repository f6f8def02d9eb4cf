// Reduces summed and maximum buffers (nn/buffer.h) over the ranks that contribute to them: one all-reduce per step for
// all buffers of the same dtype, rule and ranks, however many modules have one.
#pragma once

#include <vector>

#include "witan/parallel/groups.h"

namespace witan {

class BufferSums {
 public:
  // Whether a step may be undone.
  enum class Undo : uint8_t { never, possible };

  // Allocates the ranks' shares and binds them to the buffers until this is destroyed. Buffers and groups must outlive
  // it.
  BufferSums(Stream& stream, const std::vector<Buffer*>& buffers, const Groups& groups, Undo undo = Undo::never);
  ~BufferSums();
  BufferSums(const BufferSums&) = delete;
  BufferSums& operator=(const BufferSums&) = delete;

  // Called before the first forward of a step; zeroes the shares.
  void begin_step(Stream& stream) const;
  // Called by all ranks after the last backward: sets the buffers' values to the sum, or the maximum, of all ranks'
  // shares.
  void finish_step(Stream& stream) const;
  // Restores the values from before begin_step() if undo is possible.
  void undo_step(Stream& stream) const;

 private:
  struct Shares {
    Group* group;
    DType dtype;
    Reduce reduce;
    std::vector<Buffer*> buffers = {};
    Tensor flat = {};    // their shares, concatenated
    Tensor before = {};  // their values before the step, concatenated; undefined: never needed
  };
  // Calls copy(value, its part of `before`) for every buffer whose value is kept.
  template <class Copy>
  void for_kept(const Copy& copy) const;

  std::vector<Shares> all_;
};

}  // namespace witan

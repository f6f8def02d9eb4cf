// Sums of summed buffers (nn/buffer.h), and the largest shares of largest ones, over the ranks that find shares of
// them: one all-reduce a step for all buffers of one dtype and rule that the same ranks share, however many modules
// have one.
#pragma once

#include <vector>

#include "witan/parallel/groups.h"

namespace witan {

class BufferSums {
 public:
  // Whether a step may be taken back.
  enum class Undo : uint8_t { never, possible };

  // Allocates the shares and binds them to those of these buffers that have them until it is destroyed. Buffers and
  // groups must outlive it.
  BufferSums(Stream& stream, const std::vector<Buffer*>& buffers, const Groups& groups, Undo undo = Undo::never);
  ~BufferSums();
  BufferSums(const BufferSums&) = delete;
  BufferSums& operator=(const BufferSums&) = delete;

  // Before the first forward of a step: shares are zeros.
  void begin_step(Stream& stream) const;
  // After its last backward, a call of all ranks: the buffers' values are the sums, or the largest, of all ranks'
  // shares.
  void finish_step(Stream& stream) const;
  // The values are those of before begin_step() again, if that may be.
  void undo_step(Stream& stream) const;

 private:
  struct Shares {
    Group* group;
    DType dtype;
    Reduce reduce;
    std::vector<Buffer*> buffers = {};
    Tensor flat = {};    // their shares, one after the other
    Tensor before = {};  // their values before the step, likewise; undefined: nobody will ask
  };
  // copy(value, its part of `before`) for every buffer whose value is kept.
  template <class Copy>
  void for_kept(const Copy& copy) const;

  std::vector<Shares> all_;
};

}  // namespace witan

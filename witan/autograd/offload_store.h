// Keeps values in pinned host memory between a forward and its backward. The device's copy engines move them on a side
// stream beside computation (Rhu et al., "vDNN", 2016; activation offloading in Megatron-LM and torchtitan).
//
// A value leaves while the segment that reads it runs: keep() begins the copy, and the next keep() of the pass, or its
// end, lets the main stream wait for it and gives the device's memory back. It returns one segment ahead: take() waits
// for its own value and then begins to fetch that of the segment before, whose backward comes next. So the main stream
// waits only if a copy takes longer than a segment.
//
// The host never waits, so that all of this may be part of a captured step. On the meta device nothing is copied, but
// both memories are counted.
#pragma once

#include <cstdint>
#include <memory>

#include "witan/tensor/tensor.h"

namespace witan {

class OffloadStore {
 public:
  // The main stream must outlive the store, and the store what it keeps.
  explicit OffloadStore(Stream& main);

  // Reserves host memory for all values that are kept at the same time; 0 gives it back. Nothing may be kept then.
  // Throws OutOfMemoryError.
  void reserve(int64_t bytes);
  int64_t reserved() const { return reserved_; }     // bytes
  int64_t high_water() const { return most_used_; }  // of the bytes that were reserved
  // The host memory that a value of this many bytes takes.
  static int64_t room_for(int64_t bytes);

  // Enclose a forward whose backward follows.
  void begin_pass();
  void end_pass();

  // A value between its forward and its backward.
  class Kept {
   public:
    explicit Kept(OffloadStore& store) : store_(store) {}
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    // Called once, in the backward: the value, which work that is queued on the main stream from now on may read.
    Tensor take();

   private:
    friend class OffloadStore;
    void fetch();

    OffloadStore& store_;
    Tensor device_, host_;          // one of them is defined until take()
    bool arrives_ = false;          // it is being fetched, and the main stream does not wait for it yet
    std::weak_ptr<Kept> previous_;  // of the same pass
  };
  // Keeps a contiguous value of the main stream. Unless it `leaves` it stays on the device, and take() only begins to
  // fetch the value before it.
  std::shared_ptr<Kept> keep(const Tensor& value, bool leaves);

 private:
  void settle();
  void copy(const Tensor& to, const Tensor& from, const char* name);

  Stream& main_;
  Stream side_;
  std::shared_ptr<Arena> host_;  // null: nothing is reserved
  int64_t reserved_ = 0, most_used_ = 0;
  Tensor leaving_;              // its copy is under way
  std::weak_ptr<Kept> latest_;  // of this pass
};

}  // namespace witan

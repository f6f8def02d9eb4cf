// Timestamps on a device's own clock, taken where its work comes to them: how long each part of a step takes, without
// waiting for any. In work that is captured a moment is part of the work, and each replay takes it anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "witan/tensor/device.h"

namespace witan {

class Timestamps {
 public:
  virtual ~Timestamps() = default;
  Timestamps() = default;
  Timestamps(const Timestamps&) = delete;
  Timestamps& operator=(const Timestamps&) = delete;

  // Before the work whose timestamps are to be read, which is not being captured: finds out what steady_ns() is on the
  // device's clock. Waits for the queue.
  virtual void start(Queue& queue) = 0;
  // When all that was queued so far is done. Returns the moment's number, from 0 on since clear().
  virtual size_t mark(Queue& queue) = 0;
  // Of each mark, in steady_ns(), as the work that began at the last start() came to it. Waits for that work.
  virtual std::vector<int64_t> read() = 0;
  // Forgets the marks. Captured work that has some must not run any more.
  virtual void clear() = 0;
};

// By CUDA events on a GPU; elsewhere work is done when it is queued.
std::unique_ptr<Timestamps> make_timestamps(Device device);

}  // namespace witan

// Measures the time of work on a stream's device, by the device's own clock on a GPU and by Stream::now() elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "witan/tensor/device.h"
#include "witan/tensor/tensor.h"

namespace witan {

// The median over samples of the seconds of a call, after warm-up calls. A sample is as many consecutive calls as take
// a fifth of a millisecond, so that neither clock resolution nor launches matter; there are as many samples as fit into
// `budget` seconds, at least five. Waits for the stream.
double median_seconds(Stream& stream, double budget, const std::function<void()>& call);

// Seconds of each of a given number of calls, for work that several ranks must call equally often. Waits for the
// stream.
std::vector<double> time_calls(Stream& stream, int calls, const std::function<void()>& call);

// Timestamps on a device's own clock, taken when its queue reaches them, so that the parts of a step are timed without
// waiting for any of them. A mark in captured work is part of the work: each replay takes it again.
class Timestamps {
 public:
  virtual ~Timestamps() = default;
  Timestamps() = default;
  Timestamps(const Timestamps&) = delete;
  Timestamps& operator=(const Timestamps&) = delete;

  // Relates the device's clock to steady_ns(). Called before the work to be timed, and not during a capture. Waits for
  // the queue.
  virtual void start(Queue& queue) = 0;
  // Marks the moment when everything queued so far is done. Returns its number, counted from 0 since clear().
  virtual size_t mark(Queue& queue) = 0;
  // The time of each mark, in steady_ns(), in the work since the last start(). Waits for that work.
  virtual std::vector<int64_t> read() = 0;
  // Forgets the marks. Captured work that contains some must not run any more.
  virtual void clear() = 0;
};

// Uses CUDA events on a GPU. Elsewhere work is done when it is queued, and a mark reads the host's clock.
std::unique_ptr<Timestamps> make_timestamps(Device device);

// Fills a contiguous floating tensor with normal values times `scale`, a million of them, drawn with `number` as the
// seed and repeated. Measurements need random data: with fewer bit flips a kernel runs faster than it does in training.
void fill_normal(Stream& stream, const Tensor& to, uint64_t number, double scale = 1);

}  // namespace witan

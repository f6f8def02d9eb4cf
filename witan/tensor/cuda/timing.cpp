#include "witan/tensor/timing.h"

#include <nvtx3/nvToolsExt.h>

#include <cmath>
#include <utility>

#include "witan/tensor/cuda.h"
#include "witan/tensor/cuda/stream.h"
#include "witan/tensor/observer.h"

namespace witan::cuda {
namespace {

// A point in the work of a stream.
class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "creating an event"); }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "recording an event"); }
  double seconds_since(const Event& before) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before.event_, event_), "reading an event");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::vector<double> time_calls(Queue& queue, int calls, const std::function<void()>& call) {
  const auto stream = static_cast<cudaStream_t>(queue.native());
  std::vector<std::pair<Event, Event>> events(static_cast<size_t>(calls));
  for (const auto& [begin, end] : events) {
    begin.record(stream);
    call();
    end.record(stream);
  }
  queue.wait();
  std::vector<double> seconds;
  for (const auto& [begin, end] : events) seconds.push_back(end.seconds_since(begin));
  return seconds;
}

void push_range(const std::string& name) {
  nvtxRangePushA(name.c_str());
}
void pop_range() {
  nvtxRangePop();
}

namespace {

class CudaTimestamps final : public Timestamps {
 public:
  explicit CudaTimestamps(int device) : device_(device) {
    const OnDevice on(device_);
    check(cudaEventCreate(&base_), "creating an event");
  }
  ~CudaTimestamps() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaEventDestroy(base_);
  }

  void start(Queue& queue) override {
    queue.wait();  // the event is then recorded at once
    check(cudaEventRecord(base_, static_cast<cudaStream_t>(queue.native())), "recording an event");
    queue.wait();
    base_ns_ = steady_ns();
  }
  size_t mark(Queue& queue) override {
    const auto stream = static_cast<cudaStream_t>(queue.native());
    if (marks_ == events_.size()) check(cudaEventCreate(&events_.emplace_back()), "creating an event");
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream, &status), "asking whether a CUDA graph is being captured");
    // Without this flag a captured event would only order work of the graph, and have no time.
    const unsigned how = status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
    check(cudaEventRecordWithFlags(events_[marks_], stream, how), "recording an event");
    return marks_++;
  }
  std::vector<int64_t> read() override {
    const OnDevice on(device_);
    std::vector<int64_t> timestamps;
    for (size_t i = 0; i < marks_; ++i) {
      check(cudaEventSynchronize(events_[i]),
            "waiting for an event");  // it may be on another stream than the one waited for
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, base_, events_[i]), "reading an event");
      timestamps.push_back(base_ns_ + std::llround(1e6 * static_cast<double>(milliseconds)));
    }
    return timestamps;
  }
  void clear() override { marks_ = 0; }

 private:
  int device_;
  cudaEvent_t base_ = nullptr;
  int64_t base_ns_ = 0;
  std::vector<cudaEvent_t> events_;  // of marks, and spare ones for further marks
  size_t marks_ = 0;
};

}  // namespace

std::unique_ptr<Timestamps> make_timestamps(int device) {
  return std::make_unique<CudaTimestamps>(device);
}

}  // namespace witan::cuda

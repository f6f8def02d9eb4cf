#include <utility>

#include "witan/tensor/cuda/stream.h"

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

}  // namespace witan::cuda

// A device's operations for streams, below kernels: copies and waiting. Addresses are the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace witan {

// Captured work (a CUDA graph) that can be queued again as a whole, on the same addresses.
class Graph {
 public:
  virtual ~Graph() = default;
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  virtual void launch() = 0;
};

class Queue {
 public:
  virtual ~Queue() = default;
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  virtual void write(std::byte* to, const void* from, int64_t bytes) = 0;      // `from` may be reused on return
  virtual void read(void* to, const std::byte* from, int64_t bytes) = 0;       // waits
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;  // within the device
  // Between the device and pinned host memory (Arena::reserve_pinned), in either direction and without waiting. On a
  // CPU both are plain memory.
  virtual void copy_pinned(std::byte* to, const std::byte* from, int64_t bytes) { copy(to, from, bytes); }
  virtual void zero(std::byte* to, int64_t bytes) = 0;
  virtual void wait() = 0;
  virtual void follow(Queue&) {}  // work queued here from now on waits for all work queued there so far
  // Throws DeviceError, naming `what`, if the work that was just queued had an error.
  virtual void check(const char* what) = 0;
  virtual void* native() = 0;  // cudaStream_t

  // Whether work can be captured. Between begin_recording() and end_recording(), which one thread calls, queued work is
  // not executed, and nothing may wait. The graph must be destroyed before the queue.
  virtual bool records() const { return false; }
  virtual void begin_recording() {}
  virtual std::unique_ptr<Graph> end_recording() { return nullptr; }

  // While the queue waits, it calls poll(seconds waited so far), and poll(0) after the wait; an exception from it ends
  // the wait. For a stream whose work depends on other ranks, and may never finish.
  void set_poll(std::function<void(double seconds)> poll) { poll_ = std::move(poll); }

 protected:
  std::function<void(double seconds)> poll_;
};

// Captures the work that `work` queues, without executing it, so that it can be replayed many times. The queue must
// support capture. An exception from `work` ends the capture.
std::unique_ptr<Graph> record(Queue& queue, const std::function<void()>& work);

}  // namespace witan

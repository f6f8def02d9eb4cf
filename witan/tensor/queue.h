// What a device does for its streams below kernels: moving bytes and waiting. Addresses are the device's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace witan {

// Work that was recorded once and can be queued again at once, on the very same addresses.
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
  virtual void zero(std::byte* to, int64_t bytes) = 0;
  virtual void wait() = 0;
  virtual void follow(Queue&) {}  // what is queued here from now on waits for all that the other has by now
  // Throws DeviceError, naming `what`, for an error of work that was just queued.
  virtual void check(const char* what) = 0;
  virtual void* native() = 0;  // cudaStream_t

  // Whether work can be recorded. Between begin and end what is queued is not done, and nothing may wait; both are
  // calls of one thread. The graph must go before the queue does.
  virtual bool records() const { return false; }
  virtual void begin_recording() {}
  virtual std::unique_ptr<Graph> end_recording() { return nullptr; }

  // While the queue waits it calls look(seconds waited so far), and look(0) when the wait is over; what that throws
  // ends the wait. For a stream whose work depends on other ranks: it may never be done.
  void set_look(std::function<void(double seconds)> look) { look_ = std::move(look); }

 protected:
  std::function<void(double seconds)> look_;
};

}  // namespace witan

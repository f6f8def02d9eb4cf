// Work of several parts that wait for the memory, each of which goes on while the others wait: coroutines in turns
// (Jonathan et al., "Exploiting coroutines to attack the killer nanoseconds", 2018,
// https://doi.org/10.14778/3236187.3236216).
#pragma once

#include <coroutine>
#include <cstddef>
#include <span>
#include <utility>

namespace witan {

// A coroutine that begins with the first go_on(). Not thread-safe.
class Turns {
 public:
  struct promise_type {
    Turns get_return_object() { return Turns(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };

  Turns() = default;
  Turns(Turns&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Turns& operator=(Turns&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Turns() {
    if (handle_) handle_.destroy();
  }

  // Up to the next co_await; rethrows what the coroutine throws. False: it has ended.
  bool go_on() {
    handle_.resume();
    return !handle_.done();
  }

 private:
  explicit Turns(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// co_await fetch(p): the other parts go on while *p is on its way into the processor's cache.
inline std::suspend_always fetch(const void* p) {
  __builtin_prefetch(p);
  return {};
}

// Until all have ended.
inline void take_turns(std::span<Turns> parts) {
  size_t left = parts.size();
  while (left > 0)
    for (size_t i = 0; i < left;)
      if (parts[i].go_on())
        ++i;
      else
        std::swap(parts[i], parts[--left]);
}

}  // namespace witan

// Interleaved coroutines: each prefetches what it needs next and yields to the others while the cache line is loaded
// (Jonathan et al., "Exploiting coroutines to attack the killer nanoseconds", 2018,
// https://doi.org/10.14778/3236187.3236216).
#pragma once

#include <coroutine>
#include <cstddef>
#include <span>
#include <utility>

namespace witan {

// A coroutine that starts with the first resume(). Not thread-safe.
class Interleaved {
 public:
  struct promise_type {
    Interleaved get_return_object() { return Interleaved(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };

  Interleaved() = default;
  Interleaved(Interleaved&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Interleaved& operator=(Interleaved&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Interleaved() {
    if (handle_) handle_.destroy();
  }

  // Runs to the next co_await and rethrows what the coroutine throws. Returns false once it has ended.
  bool resume() {
    handle_.resume();
    return !handle_.done();
  }

 private:
  explicit Interleaved(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// co_await fetch(p) yields to the other coroutines while *p is loaded into the cache.
inline std::suspend_always fetch(const void* p) {
  __builtin_prefetch(p);
  return {};
}

// Runs the coroutines round-robin until all have ended.
inline void run_interleaved(std::span<Interleaved> tasks) {
  size_t left = tasks.size();
  while (left > 0)
    for (size_t i = 0; i < left;)
      if (tasks[i].resume())
        ++i;
      else
        std::swap(tasks[i], tasks[--left]);
}

}  // namespace witan

// A pool of threads that one rank owns. Work is cut into tasks whose results do not depend on who runs them, so the
// number of threads never changes a bit of the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace witan {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 means that everything runs inline.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Runs task(0) … task(count-1), each once, in any order, and returns when all are done. The first exception thrown by
  // a task is rethrown here. Called by one thread at a time; tasks must not call it again.
  void run(int64_t count, const std::function<void(int64_t task)>& task);

  // Cuts [0, count) into ranges of at least `grain` items and runs body(begin, end) on each. Cuts depend on count and
  // grain alone.
  void for_ranges(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

// Cores this process may use (its affinity mask and its control group's quota).
int usable_cores();

// Runs work(0) ... work(count - 1), each once, in any order, on up to 32 threads whatever the cores, and returns when
// all are done. Then the exception of the lowest number is rethrown, if any.
void side_by_side(size_t count, const std::function<void(size_t i)>& work);

}  // namespace witan

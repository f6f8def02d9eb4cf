#include "witan/base/threads/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "witan/base/threads/mutex.h"

namespace witan {
namespace {

constexpr int kSpins = 2000;          // about 20 µs: covers the gap between two kernels of one layer
constexpr int64_t kMostRanges = 256;  // enough to balance any pool, few enough that a task is worth starting

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

constexpr size_t kMostThreads = 32;
constexpr size_t kLeastWork = 2;  // for a thread of its own

struct FirstError {
  Mutex mutex;
  size_t number WITAN_GUARDED_BY(mutex) = 0;
  std::exception_ptr error WITAN_GUARDED_BY(mutex);

  void keep(size_t of, std::exception_ptr thrown) {
    const MutexLock lock(mutex);
    if (error && number < of) return;
    number = of;
    error = std::move(thrown);
  }
};

}  // namespace

struct ThreadPool::Shared {
  const std::function<void(int64_t)>* task = nullptr;
  int64_t count = 0;
  std::atomic<int64_t> next{0};
  std::atomic<int> running{0};          // workers that have not finished this generation
  std::atomic<uint64_t> generation{0};  // counts the calls of run()
  bool may_spin = false;
  Mutex mutex;
  CondVar work, done;
  bool stop WITAN_GUARDED_BY(mutex) = false;
  std::exception_ptr error WITAN_GUARDED_BY(mutex);
  std::vector<std::thread> workers;

  // Here rather than in ~ThreadPool, so that it also joins the workers of a pool whose last thread could not start.
  ~Shared() {
    {
      const MutexLock lock(mutex);
      stop = true;
    }
    work.notify_all();
    for (auto& worker : workers) worker.join();
  }

  void take_tasks() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        (*task)(i);
      } catch (...) {
        const MutexLock lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void worker_loop() {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; may_spin && spin < kSpins && generation.load(std::memory_order_acquire) == seen; ++spin)
        relax();
      {
        MutexLock lock(mutex);
        while (!stop && generation.load(std::memory_order_relaxed) == seen) work.wait(lock);
        if (stop) return;
        seen = generation.load(std::memory_order_relaxed);
      }
      take_tasks();
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const MutexLock lock(mutex);
        done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : shared_(std::make_unique<Shared>()) {
  assert(threads >= 1);
  shared_->may_spin = threads <= usable_cores();
  for (int i = 1; i < threads; ++i) shared_->workers.emplace_back([s = shared_.get()] { s->worker_loop(); });
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const {
  return static_cast<int>(shared_->workers.size()) + 1;
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t)>& task) {
  if (shared_->workers.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  Shared& s = *shared_;
  {
    const MutexLock lock(s.mutex);
    s.task = &task;
    s.count = count;
    s.next.store(0, std::memory_order_relaxed);
    s.running.store(static_cast<int>(s.workers.size()), std::memory_order_relaxed);
    s.generation.fetch_add(1, std::memory_order_release);
  }
  s.work.notify_all();
  s.take_tasks();
  for (int spin = 0; s.may_spin && spin < kSpins && s.running.load(std::memory_order_acquire) > 0; ++spin) relax();
  MutexLock lock(s.mutex);
  while (s.running.load(std::memory_order_acquire) != 0) s.done.wait(lock);
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

void ThreadPool::for_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t ranges = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, kMostRanges);
  run(ranges, [&](int64_t i) { body(count * i / ranges, count * (i + 1) / ranges); });
}

int usable_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                          : static_cast<int>(std::thread::hardware_concurrency());
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0)
    cores = std::min(cores, std::max(1, static_cast<int>(std::stod(quota) / period)));
  return std::max(cores, 1);
}

void side_by_side(size_t count, const std::function<void(size_t)>& work) {
  FirstError first;
  ThreadPool pool(static_cast<int>(std::clamp<size_t>(count / kLeastWork, 1, kMostThreads)));
  pool.run(static_cast<int64_t>(count), [&](int64_t i) {
    try {
      work(static_cast<size_t>(i));
    } catch (...) {
      first.keep(static_cast<size_t>(i), std::current_exception());
    }
  });
  const MutexLock lock(first.mutex);
  if (first.error) std::rethrow_exception(first.error);
}

}  // namespace witan

#include "witan/base/threads/side_by_side.h"

#include <algorithm>
#include <exception>

#include "witan/base/threads/mutex.h"
#include "witan/base/threads/threads.h"

namespace witan {
namespace {

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

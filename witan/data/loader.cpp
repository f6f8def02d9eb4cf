#include "witan/data/loader.h"

#include <chrono>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/mutex.h"

namespace witan {
namespace {

void check_options(const LoaderOptions& o, int64_t consumed_samples) {
  require<ConfigError>(
      o.micro_batch_size >= 1 && o.data_parallel_size >= 1 && o.prefetch >= 1 && consumed_samples >= 0,
      "micro_batch_size, data-parallel size and prefetch must be positive, consumed samples not negative");
  require<ConfigError>(o.data_parallel_rank >= 0 && o.data_parallel_rank < o.data_parallel_size, "data-parallel rank ",
                       o.data_parallel_rank, " is outside [0, ", o.data_parallel_size, ")");
  const int64_t unit = o.micro_batch_size * o.data_parallel_size;
  require<ConfigError>(o.global_batch_size >= 1 && o.global_batch_size % unit == 0, "global_batch_size ",
                       o.global_batch_size, " must be a multiple of micro_batch_size ", o.micro_batch_size,
                       " x data-parallel size ", o.data_parallel_size);
  validate(o.batch);
}

}  // namespace

struct Loader::Worker {
  Worker(std::shared_ptr<const SampleSource> samples_, LoaderOptions options_, int64_t consumed_samples)
      : samples(std::move(samples_)), options(options_), consumed(consumed_samples) {
    thread = std::thread([this] { run(); });
  }

  ~Worker() {
    {
      const MutexLock lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  int64_t accumulations() const {
    return options.global_batch_size / (options.micro_batch_size * options.data_parallel_size);
  }

  void run() {
    try {
      for (int64_t first = consumed;; first += options.global_batch_size) {
        std::vector<Batch> batches = make(first);
        MutexLock lock(mutex);
        while (!stopping && static_cast<int64_t>(ready.size()) >= options.prefetch) changed.wait(lock);
        if (stopping) return;
        ready.push_back(std::move(batches));
        changed.notify_all();
      }
    } catch (...) {
      const MutexLock lock(mutex);
      failure = std::current_exception();
      changed.notify_all();
    }
  }

  // Cut short where the loader stops: run() then drops what there is.
  std::vector<Batch> make(int64_t first) {
    std::vector<Batch> batches;
    for (int64_t a = 0; a < accumulations() && !is_stopping(); ++a) {
      const int64_t j = options.data_parallel_rank * accumulations() + a;
      batches.push_back(
          make_batch(*samples, first + j * options.micro_batch_size, options.micro_batch_size, options.batch));
    }
    return batches;
  }

  bool is_stopping() {
    const MutexLock lock(mutex);
    return stopping;
  }

  std::vector<Batch> take() {
    MutexLock lock(mutex);
    const auto start = std::chrono::steady_clock::now();
    while (ready.empty() && !failure) changed.wait(lock);
    waited += std::chrono::steady_clock::now() - start;
    if (ready.empty()) std::rethrow_exception(failure);
    std::vector<Batch> batches = std::move(ready.front());
    ready.pop_front();
    consumed += options.global_batch_size;
    changed.notify_all();
    return batches;
  }

  const std::shared_ptr<const SampleSource> samples;
  const LoaderOptions options;
  int64_t consumed;  // the caller's; the thread reads it once, before the caller can change it
  std::chrono::duration<double> waited{0};

  Mutex mutex;
  CondVar changed;
  std::deque<std::vector<Batch>> ready WITAN_GUARDED_BY(mutex);
  std::exception_ptr failure WITAN_GUARDED_BY(mutex);
  bool stopping WITAN_GUARDED_BY(mutex) = false;
  std::thread thread;
};

Loader::Loader(std::shared_ptr<const SampleSource> samples, LoaderOptions options, int64_t consumed_samples) {
  check_options(options, consumed_samples);
  worker_ = std::make_unique<Worker>(std::move(samples), options, consumed_samples);
}
Loader::~Loader() = default;

std::vector<Batch> Loader::next() {
  return worker_->take();
}
int64_t Loader::consumed_samples() const {
  return worker_->consumed;
}
int64_t Loader::accumulations() const {
  return worker_->accumulations();
}
double Loader::waited_seconds() const {
  return worker_->waited.count();
}

}  // namespace witan

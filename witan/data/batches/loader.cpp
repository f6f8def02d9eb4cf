#include "witan/data/batches/loader.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads/mutex.h"

namespace witan {
namespace {

void check_options(const LoaderOptions& o, int64_t consumed_samples) {
  require<ConfigError>(
      o.micro_batch_size >= 1 && o.data_parallel_size >= 1 && o.prefetch >= 1 && o.threads >= 1 &&
          consumed_samples >= 0,
      "micro_batch_size, data-parallel size, prefetch and threads must be positive, consumed samples not negative");
  require<ConfigError>(o.data_parallel_rank >= 0 && o.data_parallel_rank < o.data_parallel_size, "data-parallel rank ",
                       o.data_parallel_rank, " is outside [0, ", o.data_parallel_size, ")");
  const int64_t unit = o.micro_batch_size * o.data_parallel_size;
  for (const int64_t size : o.ramp ? o.ramp->sizes() : std::vector{o.global_batch_size})
    require<ConfigError>(size >= 1 && size % unit == 0, "global_batch_size ", size,
                         " must be a multiple of micro_batch_size ", o.micro_batch_size, " x data-parallel size ",
                         o.data_parallel_size);
  validate(o.batch);
}

}  // namespace

struct Loader::Worker {
  Worker(std::shared_ptr<const SampleSource> samples_, LoaderOptions options_, int64_t consumed_samples)
      : samples(std::move(samples_)), options(options_), consumed(consumed_samples) {
    next_global = next_made = consumed;
    for (int64_t t = 0; t < options.threads; ++t) threads.emplace_back([this] { run(); });
  }

  ~Worker() {
    {
      const MutexLock lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (auto& thread : threads) thread.join();
  }

  // The samples of the global batch that begins with sample `first`, and its micro-batches on this rank.
  int64_t size(int64_t first) const { return options.ramp ? options.ramp->size(first) : options.global_batch_size; }
  int64_t accumulations(int64_t first) const {
    return size(first) / (options.micro_batch_size * options.data_parallel_size);
  }

  // A global batch that is being made.
  struct Making {
    std::vector<Batch> batches;  // [accumulations]
    int64_t started = 0, missing = 0;
    std::exception_ptr failure;
  };

  // Micro-batches of a global batch are made side by side: where the tokens lie on a slow disk, several are waited for
  // at once.
  void run() {
    ::pthread_setname_np(::pthread_self(), "data loader");  // for top, gdb, and bench/slow_disk.py
    for (;;) {
      Making* making = nullptr;
      int64_t first = 0, accumulation = 0;
      {
        MutexLock lock(mutex);
        while (!stopping && !(making = unfinished(first))) changed.wait(lock);
        if (stopping) return;
        accumulation = making->started++;
      }
      if (accumulation == 0) prefetch(*making, first);
      make(*making, first, accumulation);
    }
  }

  // A batch with a micro-batch not in progress yet, and its first sample; null if there are enough.
  Making* unfinished(int64_t& first) WITAN_REQUIRES(mutex) {
    for (auto& [at, making] : ready)
      if (making.started < std::ssize(making.batches)) {
        first = at;
        return &making;
      }
    // One more than is kept ready is being made.
    if (static_cast<int64_t>(ready.size()) > options.prefetch) return nullptr;
    first = std::exchange(next_made, next_made + size(next_made));
    Making& making = ready[first];
    making.missing = accumulations(first);
    making.batches.resize(static_cast<size_t>(making.missing));
    return &making;
  }

  // All that this rank takes of a global batch is asked for before any of it is waited for: a file system that answers
  // late, as a remote one does, then takes as long for a batch as for a sample.
  void prefetch(Making& making, int64_t first) {
    const int64_t own = accumulations(first) * options.micro_batch_size;
    try {
      for (int64_t i = 0; i < own; ++i) samples->prefetch(first + options.data_parallel_rank * own + i);
    } catch (...) {
      fail(making, std::current_exception());
    }
  }

  void fail(Making& making, std::exception_ptr failure) {
    const MutexLock lock(mutex);
    if (!making.failure) making.failure = std::move(failure);
  }

  void make(Making& making, int64_t first, int64_t accumulation) {
    const int64_t j = options.data_parallel_rank * accumulations(first) + accumulation;
    Batch batch;
    try {
      batch = make_batch(*samples, first + j * options.micro_batch_size, options.micro_batch_size, options.batch);
    } catch (...) {
      fail(making, std::current_exception());
    }
    const MutexLock lock(mutex);
    making.batches[static_cast<size_t>(accumulation)] = std::move(batch);
    --making.missing;
    changed.notify_all();
  }

  std::vector<Batch> take() {
    MutexLock lock(mutex);
    const auto start = std::chrono::steady_clock::now();
    while (!is_ready()) changed.wait(lock);
    waited += std::chrono::steady_clock::now() - start;
    if (ready[next_global].failure) std::rethrow_exception(ready[next_global].failure);
    std::vector<Batch> batches = std::move(ready[next_global].batches);
    ready.erase(next_global);
    next_global += size(next_global);
    consumed = next_global;
    changed.notify_all();
    return batches;
  }

  bool is_ready() WITAN_REQUIRES(mutex) {
    const auto found = ready.find(next_global);
    return found != ready.end() && found->second.missing == 0;
  }

  const std::shared_ptr<const SampleSource> samples;
  const LoaderOptions options;
  int64_t consumed;  // the caller's
  std::chrono::duration<double> waited{0};

  Mutex mutex;
  CondVar changed;
  std::map<int64_t, Making> ready WITAN_GUARDED_BY(mutex);  // by first sample: made, or being made
  int64_t next_global WITAN_GUARDED_BY(mutex) = 0;          // that take() gives
  int64_t next_made WITAN_GUARDED_BY(mutex) = 0;            // that is begun
  bool stopping WITAN_GUARDED_BY(mutex) = false;
  std::vector<std::thread> threads;
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
  return worker_->accumulations(worker_->consumed);
}
double Loader::waited_seconds() const {
  return worker_->waited.count();
}

}  // namespace witan

#include "witan/data/prepare/encoding_line.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "witan/base/threads/mutex.h"

namespace witan {
namespace {

// Thrown in the reader's thread to stop it.
struct LineEnded {};

class Line {
 public:
  Line(const EncodingLine& work, int threads) : work_(work), most_(2 * static_cast<size_t>(threads) + 2) {
    workers_.emplace_back([this] { read(); });
    for (int t = 0; t < threads; ++t) workers_.emplace_back([this] { encode(); });
  }

  ~Line() {
    end();
    for (auto& worker : workers_) worker.join();
  }

  void run() {
    for (int64_t number = 0;; ++number) {
      const std::optional<EncodedBatch> batch = next(number);
      if (!batch) return;
      work_.take(*batch);
    }
  }

 private:
  void read() {
    std::exception_ptr failure;
    try {
      work_.read([this](TextBatch batch) { put(std::move(batch)); });
    } catch (const LineEnded&) {
    } catch (...) {
      failure = std::current_exception();
    }
    const MutexLock lock(mutex_);
    read_all_ = true;
    if (failure) failures_.emplace(put_, failure);
    changed_.notify_all();
  }

  void put(TextBatch batch) {
    MutexLock lock(mutex_);
    while (!ended_ && in_memory_ >= most_) changed_.wait(lock);
    if (ended_) throw LineEnded();
    waiting_.emplace_back(put_++, std::move(batch));
    ++in_memory_;
    changed_.notify_all();
  }

  void encode() {
    for (;;) {
      std::pair<int64_t, TextBatch> item;
      {
        MutexLock lock(mutex_);
        while (!ended_ && !read_all_ && waiting_.empty()) changed_.wait(lock);
        if (ended_ || waiting_.empty()) return;
        item = std::move(waiting_.front());
        waiting_.pop_front();
      }
      encode_one(item.first, std::move(item.second));
    }
  }

  void encode_one(int64_t number, TextBatch batch) {
    EncodedBatch encoded{{}, batch.text_bytes, batch.source_bytes, std::move(batch.tag)};
    std::exception_ptr failure;
    try {
      encoded.documents.reserve(batch.documents.size());
      for (const Conversation& document : batch.documents) encoded.documents.push_back(work_.encode(document));
    } catch (...) {
      failure = std::current_exception();
    }
    const MutexLock lock(mutex_);
    if (failure)
      failures_.emplace(number, failure);
    else
      ready_.emplace(number, std::move(encoded));
    changed_.notify_all();
  }

  // The batch of this number; nothing at the end.
  std::optional<EncodedBatch> next(int64_t number) {
    for (;;) {
      if (wait_for(number)) return take(number);
      if (work_.wait) work_.wait();
    }
  }

  // False when there is no news for a while.
  bool wait_for(int64_t number) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
    MutexLock lock(mutex_);
    while (!ready_.contains(number) && !failures_.contains(number) && !(read_all_ && number == put_))
      if (!changed_.wait_until(lock, until)) return false;
    return true;
  }

  std::optional<EncodedBatch> take(int64_t number) {
    const MutexLock lock(mutex_);
    if (const auto failed = failures_.find(number); failed != failures_.end()) std::rethrow_exception(failed->second);
    const auto found = ready_.find(number);
    if (found == ready_.end()) return std::nullopt;
    EncodedBatch batch = std::move(found->second);
    ready_.erase(found);
    --in_memory_;
    changed_.notify_all();
    return batch;
  }

  void end() {
    const MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  const EncodingLine& work_;
  const size_t most_;  // batches in memory
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<int64_t, TextBatch>> waiting_ WITAN_GUARDED_BY(mutex_);
  std::map<int64_t, EncodedBatch> ready_ WITAN_GUARDED_BY(mutex_);
  std::map<int64_t, std::exception_ptr> failures_ WITAN_GUARDED_BY(mutex_);  // instead of the batch of this number
  size_t in_memory_ WITAN_GUARDED_BY(mutex_) = 0;                            // put, and not taken
  int64_t put_ WITAN_GUARDED_BY(mutex_) = 0;
  bool read_all_ WITAN_GUARDED_BY(mutex_) = false, ended_ WITAN_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace

void run_encoding_line(const EncodingLine& line, int threads) {
  Line(line, std::max(threads, 1)).run();
}

}  // namespace witan

#include "witan/comm/threads.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/threads.h"
#include "witan/comm/rank_error.h"
#include "witan/comm/rendezvous.h"
#include "witan/comm/thread_group.h"

namespace witan {
namespace {

struct RankError {
  int rank = 0;
  Suspicion suspicion = Suspicion::own_error;
  std::exception_ptr error;
};

}  // namespace

struct ThreadWorld::Shared {
  explicit Shared(int ranks) : size(ranks), status(ranks) { begin(); }

  const int size;
  WorldStatus status;
  std::mutex mutex;  // guards what follows
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Rendezvous>> meetings;
  std::optional<RankError> root;

  void run_rank(int rank, const std::function<void(int)>& body) {
    try {
      body(rank);
    } catch (...) {
      failed(rank, std::current_exception());
    }
    status.returned[static_cast<size_t>(rank)].store(true);
    const std::lock_guard lock(mutex);
    for (auto& [key, meeting] : meetings) meeting->wake();
  }

  // A run of which no rank has failed yet.
  void begin() {
    status.failure = std::make_shared<Failure>([this] {
      const std::lock_guard lock(mutex);
      for (auto& [key, meeting] : meetings) meeting->abort();
    });
  }

  void failed(int rank, std::exception_ptr error) {
    const Suspicion suspicion = suspicion_of(error);
    {
      const std::lock_guard lock(mutex);
      if (!root || suspicion < root->suspicion) root = RankError{rank, suspicion, std::move(error)};
    }
    status.failure->raise();
  }
};

ThreadWorld::ThreadWorld(int size, const ThreadWorldOptions& options) {
  require<ConfigError>(size >= 1, "a world has at least one rank, got ", size);
  require<ConfigError>(options.deadline_seconds > 0, "the deadline of a world must be positive, got ",
                       options.deadline_seconds, " s");
  constexpr double kMostSeconds = 1e8;  // years; a clock holds it
  shared_ = std::make_unique<Shared>(size);
  shared_->status.may_spin = size <= usable_cores();
  shared_->status.deadline_seconds = std::min(options.deadline_seconds, kMostSeconds);
}

ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const {
  return shared_->size;
}

void ThreadWorld::run(const std::function<void(int rank)>& body) {
  Shared& shared = *shared_;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shared.size; ++rank) {
    try {
      threads.emplace_back([&shared, &body, rank] { shared.run_rank(rank, body); });
    } catch (const std::system_error& error) {
      shared.failed(rank, std::make_exception_ptr(DeviceError(cat("cannot start its thread: ", error.what()))));
      break;
    }
  }
  for (auto& thread : threads) thread.join();

  for (auto& returned : shared.status.returned) returned.store(false);
  if (!shared.root) return;
  const RankError failure = *std::exchange(shared.root, std::nullopt);
  shared.meetings.clear();
  shared.begin();
  rethrow_named(failure.rank, failure.error);
}

std::unique_ptr<HostGroup> ThreadWorld::group(int rank, const std::vector<int>& ranks, std::string name) {
  Shared& shared = *shared_;
  const int here = rank_in_group(rank, ranks, shared.size, name);
  const std::lock_guard lock(shared.mutex);
  auto& meeting = shared.meetings[{name, ranks}];
  if (!meeting) {
    meeting = std::make_shared<Rendezvous>(shared.status, ranks, std::move(name));
    if (shared.status.failure->raised()) meeting->abort();
  }
  return std::make_unique<ThreadGroup>(meeting, here);
}

}  // namespace witan

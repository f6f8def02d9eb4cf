#include "witan/comm/threads/threads.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/threads/mutex.h"
#include "witan/base/threads/threads.h"
#include "witan/comm/failure.h"
#include "witan/comm/threads/rendezvous.h"
#include "witan/comm/threads/thread_group.h"

namespace witan {
namespace {

struct RankError {
  int rank = 0;
  Suspicion suspicion = Suspicion::own_error;
  std::exception_ptr error;
};

}  // namespace

struct ThreadWorld::Shared {
  Shared(int ranks, int begin_here, int end_here) : size(ranks), first(begin_here), end(end_here), status(ranks) {
    begin();
  }

  const int size, first, end;  // of the world; the ranks [first, end) are here
  WorldStatus status;
  using Meetings = std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Rendezvous>>;
  Mutex mutex;
  Meetings meetings WITAN_GUARDED_BY(mutex);
  std::optional<RankError> root WITAN_GUARDED_BY(mutex);

  void run_rank(int rank, const std::function<void(int)>& body) {
    try {
      body(rank);
    } catch (...) {
      failed(rank, std::current_exception());
    }
    status.returned[static_cast<size_t>(rank)].store(true);
    const MutexLock lock(mutex);
    for (auto& [key, meeting] : meetings) meeting->wake();
  }

  // A run of which no rank has failed yet.
  void begin() {
    status.failure = std::make_shared<Failure>([this] {
      const MutexLock lock(mutex);
      for (auto& [key, meeting] : meetings) meeting->abort();
    });
  }

  void failed(int rank, std::exception_ptr error) {
    const Suspicion suspicion = suspicion_of(error);
    {
      const MutexLock lock(mutex);
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
  const int count = options.count == 0 ? size : options.count;
  require<ConfigError>(options.first >= 0 && count >= 1 && options.first + count <= size, "ranks ", options.first,
                       " to ", options.first + count - 1, " are not all in a world of ", size);
  shared_ = std::make_unique<Shared>(size, options.first, options.first + count);
  shared_->status.may_spin = size <= usable_cores();
  shared_->status.deadline_seconds = std::min(options.deadline_seconds, kMostSeconds);
  shared_->status.hold = options.hold;
  if (!options.debug_ranks.empty())
    shared_->status.hold = std::make_shared<DebugHold>(options.debug_ranks, options.debug_ranks);
}

ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const {
  return shared_->size;
}

int ThreadWorld::local_rank(int rank) const {
  return rank - shared_->first;
}

int ThreadWorld::local_size() const {
  return shared_->end - shared_->first;
}

bool ThreadWorld::runs(int rank) const {
  return rank >= shared_->first && rank < shared_->end;
}

DebugHold* ThreadWorld::hold() {
  return shared_->status.hold.get();
}

const std::shared_ptr<Failure>& ThreadWorld::failure(int) const {
  return shared_->status.failure;
}

void ThreadWorld::run(const std::function<void(int rank)>& body) {
  Shared& shared = *shared_;
  std::vector<std::thread> threads;
  for (int rank = shared.first; rank < shared.end; ++rank) {
    try {
      threads.emplace_back([&shared, &body, rank] { shared.run_rank(rank, body); });
    } catch (const std::system_error& error) {
      shared.failed(rank, std::make_exception_ptr(DeviceError(cat("cannot start its thread: ", error.what()))));
      break;
    }
  }
  for (auto& thread : threads) thread.join();

  for (auto& returned : shared.status.returned) returned.store(false);
  std::optional<RankError> failure;
  {
    const MutexLock lock(shared.mutex);
    failure = std::exchange(shared.root, std::nullopt);
    if (failure) shared.meetings.clear();
  }
  if (!failure) return;
  shared.begin();
  rethrow_named(failure->rank, failure->error);
}

std::unique_ptr<HostGroup> ThreadWorld::group(int rank, const std::vector<int>& ranks, std::string name) {
  Shared& shared = *shared_;
  const int here = rank_in_group(rank, ranks, shared.size, name);
  for (const int other : ranks)
    require<ConfigError>(runs(other), "axis ", name, ": rank ", other, " is not in this process");
  const MutexLock lock(shared.mutex);
  auto& meeting = shared.meetings[{name, ranks}];
  if (!meeting) {
    meeting = std::make_shared<Rendezvous>(shared.status, ranks, std::move(name));
    if (shared.status.failure->raised()) meeting->abort();
  }
  return std::make_unique<ThreadGroup>(meeting, here);
}

}  // namespace witan

// A world whose ranks are threads of this process: no launcher, and every layout runs on a laptop. Or, of a world of
// several processes, the ranks of one (process_world.h), in groups of their own.
//
// Groups move bytes between the ranks' own buffers, without staging. Waits spin for some 200 µs when every rank has a
// core, then sleep; each has a deadline. When a rank throws, the waits of all others end at once. When a rank returns
// while others still wait for it, theirs end with an error that says so.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/comm/host_group.h"

namespace witan {

struct ThreadWorldOptions {
  double deadline_seconds = 300;      // how long a rank waits for its peers in one call
  int first = 0, count = 0;           // the ranks that are threads here, if not all: `count` of them from `first` on
  std::vector<int> debug_ranks = {};  // which a debugger may hold: no deadline runs then
  std::shared_ptr<DebugHold> hold = nullptr;  // of the world that these ranks are part of, if there is one
};

class ThreadWorld : public World {
 public:
  explicit ThreadWorld(int size, const ThreadWorldOptions& options = {});
  ~ThreadWorld() override;
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const override;

  // Runs body(rank) on a thread per rank and joins them all. Rethrows the root of their errors: the first that is not a
  // mere consequence of another rank's, and not a CommError if there is any other. Its class (and exit code) is kept,
  // its message begins with "rank 2: "; what is not a witan::Error becomes one, of ExitCode::internal. May be called
  // again; after a failure the groups made before it stay unusable and new ones start afresh.
  void run(const std::function<void(int rank)>& body) override;

  // May be called in any order and on any thread.
  std::unique_ptr<HostGroup> group(int rank, const std::vector<int>& ranks, std::string name) override;

  DebugHold* hold() override;
  const std::shared_ptr<Failure>& failure(int rank) const override;
  int local_rank(int rank) const override;
  int local_size() const override;
  bool runs(int rank) const override;
  std::string first(const std::function<std::string()>& body) override { return body(); }

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace witan

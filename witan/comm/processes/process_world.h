// A world of processes on one host or many. A launcher starts them (launch.h), they meet over TCP (bootstrap.h), and
// connect to rank 0 and to the ranks that they communicate with (links.h). A process runs one rank, or several of
// consecutive numbers as threads. Groups within a process meet in memory, as ThreadWorld's do, and each of its ranks
// has connections of its own.
//
// If a rank's process ends, its host is gone or it is cut off, all waits of all other ranks end within 5 s; if its
// process is stopped, they end at the deadline. A rank that throws notifies the others before it ends. Errors name
// ranks and hosts.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/comm/processes/launch.h"
#include "witan/comm/processes/links.h"
#include "witan/comm/processes/message_engine.h"
#include "witan/comm/threads/threads.h"

namespace witan {

struct ProcessWorldOptions {
  double meeting_seconds = 300;       // how long ranks wait for each other to start
  double deadline_seconds = 300;      // how long a rank waits for its peers in one call, or hears nothing of one
  int ranks_per_process = 1;          // the same in all
  std::vector<int> debug_ranks = {};  // which a debugger may hold: no deadline runs then, and silence is not a loss
};

class ProcessWorld : public World {
 public:
  // All processes together. Throws as meet_peers() does.
  explicit ProcessWorld(const Launch& launch, const ProcessWorldOptions& options = {});
  // Tells the others that these ranks are done; or, while an error unwinds, that they failed.
  ~ProcessWorld() override;

  int first_rank() const { return links_.front()->rank(); }  // of this process
  int size() const override { return links_.front()->size(); }
  const EngineChoice& engine() const { return engine_; }  // that carries what is sent between processes
  const std::string& host(int rank) const { return links_.front()->host(rank); }  // of any rank: its name
  void run(const std::function<void(int rank)>& body) override;
  std::unique_ptr<HostGroup> group(int rank, const std::vector<int>& ranks, std::string name) override;
  DebugHold* hold() override { return hold_.get(); }
  const std::shared_ptr<Failure>& failure(int rank) const override { return links(rank).failure(); }
  int local_rank(int rank) const override;
  int local_size() const override { return local_size_; }
  bool runs(int rank) const override { return threads_.runs(rank); }
  std::string first(const std::function<std::string()>& body) override;

 private:
  Links& links(int rank) const;
  [[noreturn]] void stop(int rank, const std::exception_ptr& error);

  EngineChoice engine_;
  const std::shared_ptr<DebugHold> hold_;      // null: no rank is held
  std::vector<std::unique_ptr<Links>> links_;  // of each rank of this process
  ThreadWorld threads_;                        // those ranks
  const double deadline_;
  int local_rank_ = 0, local_size_ = 1;  // of the first one
};

}  // namespace witan

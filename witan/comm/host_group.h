// A group on the host: besides CPU tensors it carries the control messages of groups on devices.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/comm/deadline.h"
#include "witan/comm/failure.h"
#include "witan/comm/group.h"

namespace witan {

class HostGroup : public Group {
 public:
  // Returns when every rank (for send and recv: the peer) is about to make this call, which another back end carries
  // out; throws CommError where they disagree. Nothing is moved: in and out may live anywhere, counts on the CPU.
  virtual void agree(const Collective& call) = 0;
  // Like agree(), but for calls that ranks may begin one after the other: it need not wait for the peers and may
  // compare several calls at once. Ranks that disagree get the error from a later agree_later() or from
  // compare_calls(), at the latest from agree().
  virtual void agree_later(const Collective& call) { agree(call); }
  // For a rank that waits for its calls to be done: empty, or how they differ from the calls of peers that wait as
  // well. Does not wait.
  virtual std::string compare_calls() { return ""; }

  virtual int world_rank(int rank) const = 0;
  virtual const std::shared_ptr<Failure>& failure() const = 0;  // of the world
  virtual const std::shared_ptr<DebugHold>& hold() const = 0;   // of the world; null: no deadline of it is held up
  virtual bool one_process() const = 0;                         // whether an address means the same to every rank
  // How long a rank waits for its peers in one call: as long as in any of the world, but for a DeadlineScope.
  const CallDeadline& deadline() const { return deadline_; }
  void abandon() noexcept override { failure()->raise(); }
  void check_messages() override { checks_messages_ = size() > 1; }

 protected:
  HostGroup(int size, int rank, std::string name, double deadline_seconds)
      : Group(size, rank, std::move(name)), deadline_{deadline_seconds} {}
  bool checks_messages() const { return checks_messages_; }

 private:
  friend class DeadlineScope;
  bool checks_messages_ = false;
  CallDeadline deadline_;
};

// Another deadline for the calls of a group while it lives, the same on all ranks. Ranks that are lost, that fail or
// that are silent end waits as before.
class DeadlineScope {
 public:
  DeadlineScope(HostGroup& group, CallDeadline deadline)
      : group_(group), before_(std::exchange(group.deadline_, std::move(deadline))) {}
  ~DeadlineScope() { group_.deadline_ = std::move(before_); }
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

 private:
  HostGroup& group_;
  CallDeadline before_;
};

// A world of ranks, some or all of which this process runs; makes their ends of host groups.
class World {
 public:
  virtual ~World() = default;
  virtual int size() const = 0;
  // Runs body(rank) for every rank of this process, each on a thread of its own if there are several. When a rank
  // throws, the waits of all others end, wherever they are. Rethrows the root of this process's errors, of its class
  // (and exit code), its message begun with "rank 2: ".
  virtual void run(const std::function<void(int rank)>& body) = 0;
  // The rank's end of the group of these world ranks, in this order. Ends with equal ranks and name belong together:
  // make one per rank. The world must outlive it. Throws ConfigError when ranks repeat, are outside the world, or do
  // not contain `rank`.
  virtual std::unique_ptr<HostGroup> group(int rank, const std::vector<int>& ranks, std::string name) = 0;
  // Ranks that a debugger may hold; null: there are none.
  virtual DebugHold* hold() = 0;
  virtual const std::shared_ptr<Failure>& failure(int rank) const = 0;  // as a rank of this process knows it
  // The number of a rank of this process among the ranks of its host, and the number of those ranks.
  virtual int local_rank(int rank) const = 0;
  virtual int local_size() const = 0;
  virtual bool runs(int rank) const = 0;  // whether it is a rank of this process
  // Outside run(): rank 0's process runs body() while the others wait, for as long as it takes; returns, in all of
  // them, what it returned (a MiB at most). What it throws is that process's error, and ends all others.
  virtual std::string first(const std::function<std::string()>& body) = 0;
};

// The number of `rank` within a group. Throws as World::group() does.
int rank_in_group(int rank, const std::vector<int>& ranks, int world_size, const std::string& name);

// "rank 3", "ranks 1, 2, 5"; a list of more than 16 is cut: "ranks 0, 1, ..., 15 and 48 more".
std::string rank_list(std::span<const int> ranks);

}  // namespace witan

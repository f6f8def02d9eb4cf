// A group whose ranks are threads of one process: each reads its peers' tensors in place.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/comm/threads/rendezvous.h"

namespace witan {

class ThreadGroup : public HostGroup {
 public:
  ThreadGroup(std::shared_ptr<Rendezvous> meeting, int rank)
      : HostGroup(meeting->size(), rank, meeting->axis(), meeting->deadline_seconds()), meeting_(std::move(meeting)) {}

  void agree(const Collective& call) override;
  int world_rank(int rank) const override { return meeting_->world_rank(rank); }
  const std::shared_ptr<Failure>& failure() const override { return meeting_->failure(); }
  const std::shared_ptr<DebugHold>& hold() const override { return meeting_->hold(); }
  bool one_process() const override { return true; }

 private:
  void perform(Stream& stream, const Collective& call) override;
  // Runs work() between all ranks' coming and leaving, unless their calls differ.
  void meet(const Collective& call, const std::function<void()>& work);
  void move(Stream& stream, const Collective& call);
  // Takes the peer's offer, unless it does not fit.
  void receive(const Collective& call, const std::function<void(const Collective& offer)>& take);

  std::string disagreement() const;  // empty, or how the calls of the ranks differ

  // If messages are checked, fills sums_ with the checksums of what the call sends, and returns the call with them.
  Collective with_sums(const Collective& call);
  // Notes it as corrupted unless what has come from the peer has the checksum that it published at `which`.
  void verify(const Collective& call, const Collective& from, int peer, size_t which, const std::byte* bytes,
              int64_t count);
  // Compares the sums of an all_reduce with those that their reducers wrote.
  void verify_results(const Collective& call);

  std::pair<int64_t, int64_t> reduced_by(const Collective& call, int rank) const;
  void reduce(Stream& stream, const Collective& call);
  void gather(Stream& stream, const Collective& call);
  void all_gather_uneven(Stream& stream, const Collective& call);
  void exchange(Stream& stream, const Collective& call);
  void exchange_equal(Stream& stream, const Collective& call);

  std::shared_ptr<Rendezvous> meeting_;
  std::vector<uint64_t> sums_;  // of this rank's call, which peers read
  std::string corrupted_;       // what has come to this rank with other bits; empty: nothing
};

}  // namespace witan

// A group whose ranks are processes: bytes travel as links.h carries them.
//
// A collective starts as between threads: every rank sends its call to all others and waits for theirs, so that all
// detect calls that differ, with the same message. Data follows; without an engine, once its receiver has said, by a
// control message, that there is room for it. Reductions proceed slice by slice: a rank collects the values of its
// slice from all ranks, sums them in the tree of reduce.h, and sends the sums, so that they have the same bits as
// between threads.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "witan/comm/checks/call_terms.h"
#include "witan/comm/host_group.h"
#include "witan/comm/processes/links.h"

namespace witan {

class ProcessGroup : public HostGroup {
 public:
  // `ranks` of the world, `here` among them this process.
  ProcessGroup(Links& links, std::vector<int> ranks, int here, std::string name, double deadline_seconds);

  void agree(const Collective& call) override;
  int world_rank(int rank) const override { return ranks_[static_cast<size_t>(rank)]; }
  const std::shared_ptr<Failure>& failure() const override { return links_.failure(); }
  const std::shared_ptr<DebugHold>& hold() const override { return links_.hold(); }
  double deadline_seconds() const override { return deadline_; }
  bool one_process() const override { return false; }

 private:
  // Bytes to or from a rank of the group.
  struct Part {
    int peer;
    std::byte* at;
    int64_t bytes;
  };

  void perform(Stream& stream, const Collective& call) override;
  void move(Stream& stream, const Collective& call);
  void meet(const Collective& call);
  void send_to_peer(const Collective& call, bool with_data);
  void recv_from_peer(const Collective& call, bool with_data);

  std::pair<int64_t, int64_t> scattered_to(const Collective& call, int rank) const;
  void reduce(Stream& stream, const Collective& call);
  void reduce_piece(Stream& stream, const Collective& call, int64_t begin, int64_t slice);
  void gather(const Collective& call);
  void all_gather_uneven(const Collective& call);
  void broadcast(const Collective& call);
  void exchange(const Collective& call, const int64_t* sends, const int64_t* receives);

  // Sends `out` to ranks that have, or make, room for what they get, and takes `in`, which await_data() waits for.
  void trade(const Collective& call, const std::vector<Part>& out, const std::vector<Part>& in);
  void await_data(const Collective& call, uint64_t channel);  // and verifies it

  // One part on its way, followed by its checksum where messages are checked; empty ones have none.
  void take(const Part& part, uint64_t channel);
  void send_data(const Part& part, uint64_t channel);
  // Of what await_data() has waited for: throws CommError on all ranks where a checksum is not that of what has come.
  void verify(const Collective& call, uint64_t channel);

  void send_control(int peer, Links::Control kind, std::span<const std::byte> bytes = {});
  std::vector<Links::Bytes> controls_of_all(const Collective& call, Links::Control kind);
  Links::Bytes control_of_peer(const Collective& call, Links::Control kind);
  [[noreturn]] void disagree(const std::string& verdict);
  template <class Body>
  void undisturbed(const Collective& call, const Body& body);
  std::string busy_with(const Collective& call) const;

  // In others' order: the next rank first, so that not all send to one.
  template <class Body>
  void for_others(const Body& body) const;
  std::string missing(Links::View& view, const std::function<bool(Links::View&, int peer)>& there,
                      bool only_left) const;
  std::string lost_peer(Links::View& view, const Collective& call) const;

  Links& links_;
  const std::vector<int> ranks_;
  const uint64_t channel_, sums_;  // sums of an all_reduce come while the rank still collects values
  const double deadline_;
  std::vector<std::byte> parts_;  // of a reduction: what the others sent
  struct Taken {
    Part part;
    uint64_t sum;
  };
  // Where messages are checked, until verify(). Deques, whose elements stay where they are while others are added.
  std::map<uint64_t, std::deque<Taken>> taken_;  // by channel: parts, with the checksums that come behind them
  std::deque<uint64_t> sent_sums_;               // of what this rank sent
};

}  // namespace witan

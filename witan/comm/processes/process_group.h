// A group whose ranks are processes, which communicate over links.h.
//
// Ranks must make the same calls. Without an engine, and for calls that do not send data from every rank to every other
// one, a collective starts as between threads: every rank sends its call to all others and waits for theirs, so that
// all detect calls that differ, with the same message. Data follows once its receiver has announced, by a control
// message, that there is room for it.
//
// An engine finds data by a tag made from the call's number and the terms that ranks must agree on. Data of another
// call never arrives, so that ranks need not compare their calls first, and data goes out at once. A rank that has
// waited for data for a moment sends its call to all others. If calls differ, all ranks have waited, and then find the
// same message as above.
//
// Calls that another back end carries out (agree_later) are compared kMostLater at a time, by a hash that ranks
// exchange at the last of them. If hashes differ, all ranks send their logs of these calls and find the same message as
// above. A rank that waits for a moment, here or for its device, sends its log early, and other waiting ranks compare
// it with theirs.
//
// Reductions proceed slice by slice: a rank collects the values of its
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
  // How long a rank waits before it asks whether the others make the same calls.
  static constexpr double kCompareAfterSeconds = 0.5;
  static constexpr size_t kMostLater = 16;  // calls until ranks come together

  // `ranks` of the world, `here` among them this process.
  ProcessGroup(Links& links, std::vector<int> ranks, int here, std::string name, double deadline_seconds);

  void agree(const Collective& call) override;
  void agree_later(const Collective& call) override;
  std::string compare_calls() override;
  int world_rank(int rank) const override { return ranks_[static_cast<size_t>(rank)]; }
  const std::shared_ptr<Failure>& failure() const override { return links_.failure(); }
  const std::shared_ptr<DebugHold>& hold() const override { return links_.hold(); }
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

  // Calls of the other ranks, by rank: as they came, empty where none has.
  using RankCalls = std::vector<Links::Bytes>;
  bool tags_data(const Collective& call) const;
  uint64_t data_tag(const Collective& call, uint64_t channel, int peer) const;
  void meet(const Collective& call);
  void send_call(const Collective& call);
  bool receive_calls(Links::View& view, RankCalls& received) const;
  void forget_calls_before(uint64_t number, Links::View& view) const;
  void require_same_calls(const Collective& call, const RankCalls& received);
  void compare_with_senders(const Collective& call, uint64_t channel);
  // Exchange of call logs.
  void send_log();
  bool receive_logs(Links::View& view);
  std::string log_disagreement() const;
  void compare_logs(const Collective& call, const RankCalls& received);
  static uint64_t digest_in(const Links::Bytes& call, int rank);
  void forget_logs();
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
  void trade(const Collective& call, std::vector<Part> out, std::vector<Part> in);
  void await_data(const Collective& call, uint64_t channel);  // and verifies it

  // One part on its way, followed by its checksum where messages are checked; empty ones have none.
  void take(const Part& part, uint64_t channel, uint64_t tag);
  void send_data(const Part& part, uint64_t channel, uint64_t tag);
  // Checks what await_data() has waited for: throws CommError on all ranks if a checksum does not match.
  void verify(const Collective& call, uint64_t channel);

  void send_control(int peer, Links::Control kind, std::span<const std::byte> bytes = {});
  void await_ready(const Collective& call);
  Links::Bytes control_of_peer(const Collective& call, Links::Control kind);
  [[noreturn]] void disagree(const std::string& verdict);
  template <class Body>
  void undisturbed(const Collective& call, const Body& body);
  std::string busy_with(const Collective& call) const;

  // Visits the other ranks, the next one first, so that not all send to the same rank.
  template <class Body>
  void for_others(const Body& body) const {
    for (int step = 1; step < size(); ++step) body((rank() + step) % size());
  }
  using There = std::function<bool(Links::View&, int peer)>;
  There data_there(uint64_t channel) const;
  std::string missing(Links::View& view, const There& there, bool only_left) const;
  // The messages for ranks that are not there() because they have returned, or are too late.
  std::function<std::string(Links::View&)> returned(const Collective& call, const There& there) const;
  std::function<std::string(Links::View&)> late(const Collective& call, const There& there) const;
  std::string lost_peer(Links::View& view, const Collective& call) const;

  Links& links_;
  const std::vector<int> ranks_;
  const uint64_t channel_, sums_;  // sums of an all_reduce come while the rank still collects values
  const uint64_t log_channel_;
  uint64_t calls_ = 0;   // collectives so far, this one included: the same number on all ranks
  uint64_t terms_ = 0;   // a hash of what ranks must agree on in this call
  bool met_ = false;     // the peers have come to the call
  CallLog log_;          // calls that have not been compared yet
  int logs_sent_ = 0;    // of this rank, since ranks last came together
  size_t compared_ = 0;  // calls of the log, including those received
  std::vector<std::vector<CallLog::Call>> logs_received_;  // by rank: the last that it sent
  std::vector<std::byte> parts_;                           // of a reduction: what the others sent
  struct Taken {
    Part part;
    uint64_t sum;
  };
  // Checksums until verify(), if messages are checked. Deques, since their elements stay in place while others are
  // added.
  std::map<uint64_t, std::deque<Taken>> taken_;  // by channel: parts, with the checksums that come after them
  std::deque<uint64_t> sent_sums_;               // of what this rank sent
};

}  // namespace witan

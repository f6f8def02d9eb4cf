// How ranks compare calls that another back end carries out.
#include <algorithm>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/processes/process_group.h"

namespace witan {

void ProcessGroup::agree_later(const Collective& call) {
  const bool pairwise = call.kind == Collective::Kind::send || call.kind == Collective::Kind::recv;
  if (pairwise || log_.calls().size() + 1 >= kMostLater) return agree(call);
  if (size() > 1) log_.add(++calls_, terms_of(call));
}

// Every rank sends its call to all others and waits for theirs.
void ProcessGroup::meet(const Collective& call) {
  send_call(call);
  RankCalls received(static_cast<size_t>(size()));
  const There there = [&](Links::View& view, int peer) {
    return !received[static_cast<size_t>(peer)].empty() && view.sent(world_rank(peer), channel_);
  };
  const auto arrived = [&](Links::View& view) {
    if (!log_.calls().empty()) receive_logs(view);
    return receive_calls(view, received);
  };
  std::string verdict;
  if (log_.calls().empty() ||
      !links_.wait_some(arrived, returned(call, there), std::min(kCompareAfterSeconds, deadline().seconds / 4))) {
    // A rank that does not come may wait for what an earlier call does, as that was another one here.
    if (!log_.calls().empty()) send_log();
    const auto arrived_or_disagree = [&](Links::View& view) {
      return arrived(view) || !(verdict = log_disagreement()).empty();
    };
    links_.wait(arrived_or_disagree, returned(call, there), late(call, there), deadline().seconds);
  }
  if (!verdict.empty()) disagree(verdict);
  compare_logs(call, received);
  require_same_calls(call, received);
  forget_logs();
}

// Sends the log at most twice until ranks meet, since a rank that does not read keeps few messages.
void ProcessGroup::send_log() {
  constexpr int kMostSent = 2;
  if (logs_sent_ == kMostSent) return;
  ++logs_sent_;
  const std::vector<std::byte> bytes = pack(log_.calls());
  for_others(
      [&](int peer) { links_.send_control(world_rank(peer), log_channel_, Control::call, bytes, deadline().seconds); });
}

// Whether there was one.
bool ProcessGroup::receive_logs(Links::View& view) {
  logs_received_.resize(static_cast<size_t>(size()));
  bool any = false;
  for_others([&](int peer) {
    const int from = world_rank(peer);
    for (; view.has_control(from, log_channel_, Control::call); any = true)
      logs_received_[static_cast<size_t>(peer)] =
          unpack_calls(view.next_control(from, log_channel_, Control::call), from);
  });
  return any;
}

// Earlier calls of this rank were compared; those that it has not made yet are in other ranks' logs only.
std::string ProcessGroup::log_disagreement() const {
  std::vector<std::vector<CallLog::Call>> logs = logs_received_;
  logs.resize(static_cast<size_t>(size()));
  logs[static_cast<size_t>(rank())] = log_.calls();
  for (auto& log : logs)
    std::erase_if(log, [&](const CallLog::Call& call) {
      return std::ranges::find(log_.calls(), call.number, &CallLog::Call::number) == log_.calls().end();
    });
  return disagreement({name(), ranks_}, logs);
}

// All ranks have come to the call and know the others' hashes: where these differ, all send their logs.
void ProcessGroup::compare_logs(const Collective& call, const RankCalls& received) {
  bool differs = false;
  for_others(
      [&](int peer) { differs |= digest_in(received[static_cast<size_t>(peer)], world_rank(peer)) != log_.digest(); });
  if (!differs) return;
  logs_sent_ = 0;
  send_log();
  const There there = [&](Links::View& view, int peer) {
    return view.sent(world_rank(peer), log_channel_) && std::ssize(logs_received_) > peer &&
           !logs_received_[static_cast<size_t>(peer)].empty() &&
           logs_received_[static_cast<size_t>(peer)].back().number + 1 == calls_;
  };
  const auto all_there = [&](Links::View& view) {
    receive_logs(view);
    return missing(view, there, false).empty();
  };
  links_.wait(all_there, returned(call, there), late(call, there), deadline().seconds);
  const std::string verdict = log_disagreement();
  disagree(verdict.empty() ? cat("axis ", name(), ": ranks made different calls before ", describe(call)) : verdict);
}

void ProcessGroup::forget_logs() {
  log_.clear();
  logs_sent_ = 0;
  compared_ = 0;
}

std::string ProcessGroup::compare_calls() {
  if (log_.calls().empty()) return "";
  send_log();
  bool arrived = false;
  const auto look = [&](Links::View& view) {
    arrived = receive_logs(view);
    return true;
  };
  links_.wait_some(
      look, [](Links::View&) { return ""; }, 0);
  if (!arrived && compared_ == log_.calls().size()) return "";
  compared_ = log_.calls().size();
  return log_disagreement();
}

}  // namespace witan

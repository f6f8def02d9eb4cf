#include "witan/comm/deadline.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/process.h"

namespace witan {
namespace {

constexpr double kLookSeconds = 1, kRefreshSeconds = 0.2;  // between looks, where no rank or one may be held

Deadline after(Deadline start, double seconds) {
  return start + std::chrono::duration_cast<Deadline::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Deadline deadline_in(double seconds) {
  return after(std::chrono::steady_clock::now(), seconds);
}

double seconds_since(Deadline then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

DebugHold::DebugHold(const std::vector<int>& ranks, const std::vector<int>& here) : ranks_(ranks.size()) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks_[i].rank = ranks[i];
    ranks_[i].here = std::ranges::find(here, ranks[i]) != here.end();
    any_here_ = any_here_ || ranks_[i].here;
  }
}

const DebugHold::Rank* DebugHold::state(int rank) const {
  const auto found = std::ranges::find(ranks_, rank, &Rank::rank);
  return found == ranks_.end() ? nullptr : &*found;
}

void DebugHold::wait_for_debugger(int rank, bool waits) {
  for (Rank& one : ranks_)
    if (one.rank == rank && one.here) one.held.store(waits);
}

void DebugHold::hear(int rank, bool held) {
  for (Rank& one : ranks_)
    if (one.rank == rank && !one.here) one.held.store(held);
}

bool DebugHold::held_here() const {
  if (!any_here_) return false;
  return std::ranges::any_of(ranks_, [](const Rank& one) { return one.here && one.held.load(); }) || tracer() != 0;
}

bool DebugHold::held(int rank) const {
  const Rank* one = state(rank);
  return one != nullptr && (one->here ? held_here() : one->held.load());
}

bool DebugHold::held() const {
  return std::ranges::any_of(ranks_, [](const Rank& one) { return one.held.load(); }) || held_here();
}

PatientDeadline::PatientDeadline(double seconds, const DebugHold* hold, Clock now)
    : seconds_(seconds), hold_(hold), now_(now), last_poll_(now()), end_(after(last_poll_, seconds)) {}

Deadline PatientDeadline::next_look() const {
  return std::min(end_, after(now_(), hold_ == nullptr ? kLookSeconds : kRefreshSeconds));
}

bool PatientDeadline::expired(double busy) {
  const Deadline now = now_();
  const bool stopped = std::chrono::duration<double>(now - last_poll_).count() > kStoppedSeconds + busy;
  last_poll_ = now;
  if (stopped || (hold_ != nullptr && hold_->held())) end_ = after(now, seconds_);
  return now >= end_;
}

}  // namespace witan

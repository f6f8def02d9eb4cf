#include "witan/comm/threads/rendezvous.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/comm/host_group.h"

namespace witan {
namespace {

using Kind = Collective::Kind;

// About 200 µs: longer than a sleeper takes to wake, or two ranks that once slept would do so in every call.
constexpr int kSpins = 10000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Counts a thread in for as long as it lives.
class Presence {
 public:
  explicit Presence(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Presence() { --count_; }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  std::atomic<int>& count_;
};

}  // namespace

Rendezvous::Rendezvous(const WorldStatus& world, std::vector<int> ranks, std::string axis)
    : world_(world),
      ranks_(std::move(ranks)),
      axis_(std::move(axis)),
      world_failure_(world.failure),
      seats_(ranks_.size()),
      channels_(ranks_.size() * ranks_.size()) {}

void Rendezvous::wake() {
  if (sleepers_.load() == 0) return;
  // A thread that checked before the change is asleep once the mutex is free.
  { const MutexLock lock(mutex_); }
  changed_.notify_all();
}

void Rendezvous::fail(const std::string& message) {
  {
    const MutexLock lock(mutex_);
    abort(message);
  }
  changed_.notify_all();
}

void Rendezvous::abort() {
  fail("");
}

void Rendezvous::abort(const std::string& message) {
  if (!broken()) failure_ = message;
  word_.fetch_or(kBroken);
}

bool Rendezvous::break_before(uint64_t arrivals, const std::string& message) {
  for (uint64_t word = word_.load();;) {
    if ((word & ~kBroken) >= arrivals) return false;
    if ((word & kBroken) != 0) return true;
    if (word_.compare_exchange_weak(word, word | kBroken)) break;
  }
  failure_ = message;
  changed_.notify_all();
  return true;
}

void Rendezvous::throw_failure() const {
  if (failure_.empty()) throw AbortedError(cat("axis ", axis_, ": stopped, as another rank failed"));
  throw CommError(failure_);
}

void Rendezvous::throw_if_broken() {
  if (!broken()) return;
  const MutexLock lock(mutex_);
  throw_failure();
}

bool Rendezvous::arrive(uint64_t target) {
  for (uint64_t word = word_.load();;) {
    if ((word & kBroken) != 0) return false;
    if (!word_.compare_exchange_weak(word, word + 1)) continue;
    if (word + 1 == target || talkers_.load() > 0) wake();
    return true;
  }
}

template <class Done>
bool Rendezvous::spin(const Done& done) const {
  for (int i = world_.may_spin ? kSpins : 1; i > 0; --i) {
    if (done()) return true;
    relax();
  }
  return false;
}

// Returns when done(). Otherwise throws the error of lost(), or late() after `seconds`, or the group's failure,
// provided that give_up(reason), called while mutex_ is held, agrees to stop.
template <class Done, class Lost, class GiveUp>
void Rendezvous::wait(const Done& done, const Lost& lost, const GiveUp& give_up, double seconds,
                      const std::function<std::string()>& late) {
  if (spin(done)) return;
  PatientDeadline deadline(seconds, world_.hold.get());
  MutexLock lock(mutex_);
  const Presence asleep(sleepers_);
  for (bool expired = false; !done();) {
    std::string reason;
    if (!broken()) {
      reason = lost();
      if (reason.empty() && expired) reason = late();
    }
    if ((broken() || !reason.empty()) && give_up(reason)) throw_failure();
    changed_.wait_until(lock, deadline.next_look());
    expired = deadline.expired();
  }
}

void Rendezvous::enter(int rank, const Collective& call, const CallDeadline& deadline) {
  Seat& seat = at(rank);
  seat.call = &call;
  seat.kind.store(call.kind);
  ++seat.arrivals;
  const uint64_t everyone = target(rank);
  if (!arrive(everyone)) throw_if_broken();
  wait([&] { return reached(everyone); },
       [&] {
         const std::string gone = missing_ranks(rank, true);
         return gone.empty() ? ""
                             : cat("axis ", axis_, ": ", gone, " returned, but rank ", world_rank(rank),
                                   " waits for it in ", describe(call), in_words(call));
       },
       [&](const std::string& reason) {
         mutex_.assert_held();
         return break_before(everyone, reason);
       },
       deadline.seconds,
       [&] {
         const std::string who = missing_ranks(rank, false);
         return deadline.message(who, cat("axis ", axis_, ": ", who, " did not reach ", describe(call), " within ",
                                          deadline.seconds, " s; rank ", world_rank(rank), " waited", in_words(call)));
       });
}

void Rendezvous::leave(int rank) noexcept {
  ++at(rank).arrivals;
  const uint64_t everyone = target(rank);
  if ((word_.fetch_add(1) & ~kBroken) + 1 == everyone) return wake();
  const auto done = [&] { return reached(everyone); };
  if (spin(done)) return;
  MutexLock lock(mutex_);
  const Presence asleep(sleepers_);
  while (!done()) changed_.wait(lock);
}

void Rendezvous::send(int rank, const Collective& call, const CallDeadline& deadline) {
  throw_if_broken();
  const Presence talking(talkers_);
  Channel& to = channel(rank, call.peer);
  to.call = &call;
  to.stage.store(Stage::offered);
  wake();
  wait([&] { return to.stage.load() == Stage::taken; }, [&] { return why_peer_is_lost(rank, call); },
       [&](const std::string& reason) {
         Stage offered = Stage::offered;
         if (!to.stage.compare_exchange_strong(offered, Stage::empty)) return false;  // it is being taken
         mutex_.assert_held();
         abort(reason);
         changed_.notify_all();
         return true;
       },
       deadline.seconds, [&] { return late_peer(rank, call, deadline); });
  const std::string verdict = std::exchange(to.verdict, {});
  to.stage.store(Stage::empty);
  if (verdict.empty()) return;
  fail(verdict);
  throw CommError(verdict);
}

void Rendezvous::recv(int rank, const Collective& call, const CallDeadline& deadline,
                      const std::function<std::string(const Collective& offer)>& take) {
  throw_if_broken();
  const Presence talking(talkers_);
  Channel& from = channel(call.peer, rank);
  wait(
      [&] {
        Stage offered = Stage::offered;
        return from.stage.compare_exchange_strong(offered, Stage::taking);
      },
      [&] { return why_peer_is_lost(rank, call); },
      [&](const std::string& reason) {
        mutex_.assert_held();
        abort(reason);
        changed_.notify_all();
        return true;
      },
      deadline.seconds, [&] { return late_peer(rank, call, deadline); });
  const std::string verdict = take(*from.call);
  from.verdict = verdict;
  from.stage.store(Stage::taken);
  wake();
  if (verdict.empty()) return;
  fail(verdict);
  throw CommError(verdict);
}

// The ranks that have not come to this rank's meeting.
std::string Rendezvous::missing_ranks(int rank, bool only_returned) const {
  const uint64_t mine = at(rank).arrivals.load();
  std::vector<int> missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (at(peer).arrivals.load() >= mine) continue;
    if (only_returned && !world_.returned[static_cast<size_t>(world_rank(peer))].load()) continue;
    missing.push_back(world_rank(peer));
  }
  return missing.empty() ? "" : rank_list(missing);
}

std::string Rendezvous::why_peer_is_lost(int rank, const Collective& call) {
  const Seat& peer = at(call.peer);
  const auto who = [&] {
    return cat("axis ", axis_, ": rank ", world_rank(rank), " calls ", describe(call), in_words(call),
               call.kind == Kind::send ? " to rank " : " from rank ", world_rank(call.peer));
  };
  // A peer that came to a meeting without this rank can leave it only with this rank.
  if (peer.arrivals.load() > at(rank).arrivals.load())
    return cat(who(), ", which calls ", name_of(peer.kind.load()), " instead");
  if (call.kind == Kind::send && channel(call.peer, rank).stage.load() == Stage::offered)
    return cat(who(), ", which sends to rank ", world_rank(rank), " at the same time; one of them must receive first");
  if (world_.returned[static_cast<size_t>(world_rank(call.peer))].load()) return cat(who(), ", which has returned");
  return "";
}

std::string Rendezvous::late_peer(int rank, const Collective& call, const CallDeadline& deadline) const {
  const std::string who = cat("rank ", world_rank(call.peer));
  return deadline.message(who, cat("axis ", axis_, ": ", who, " did not answer ", describe(call), " of rank ",
                                   world_rank(rank), in_words(call), " within ", deadline.seconds, " s"));
}

}  // namespace witan

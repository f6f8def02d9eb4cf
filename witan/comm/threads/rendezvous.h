// Lets the threads of one group wait for each other, and learn that one of them is lost.
//
// A collective is enter(), work on each other's tensors, leave(). After enter() every rank's call can be read and
// nobody can fail to come to leave(), so buffers stay alive in between; nothing is copied to be published. One atomic
// word holds the number of arrivals ever made and a flag that the group is broken: a meeting either completes for all
// or for none.
//
// Thread-safe. A rank takes part in one call at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/base/threads/mutex.h"
#include "witan/comm/deadline.h"
#include "witan/comm/failure.h"
#include "witan/comm/group.h"

namespace witan {

// The state of a world's ranks, which they share.
struct WorldStatus {
  explicit WorldStatus(int ranks) : returned(static_cast<size_t>(ranks)) {}
  std::vector<std::atomic<bool>> returned;  // the rank's function has ended and will not come to any meeting
  bool may_spin = false;
  double deadline_seconds = 0;
  std::shared_ptr<DebugHold> hold = nullptr;
  std::shared_ptr<Failure> failure = std::make_shared<Failure>();  // of this run: the next one has its own
};

class Rendezvous {
 public:
  Rendezvous(const WorldStatus& world, std::vector<int> ranks, std::string axis);

  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks() const { return ranks_; }  // of the world
  const std::string& axis() const { return axis_; }
  const std::shared_ptr<Failure>& failure() const { return world_failure_; }
  double deadline_seconds() const { return world_.deadline_seconds; }  // of the world's calls
  const std::shared_ptr<DebugHold>& hold() const { return world_.hold; }

  // Returns when every rank has entered a call. Throws CommError when one is lost or late, AbortedError after abort().
  void enter(int rank, const Collective& call, const CallDeadline& deadline);
  // The call that a rank entered with; between enter() and leave().
  const Collective& call_of(int rank) const { return *at(rank).call; }
  // Returns when every rank is here. Always completes, since ranks that have entered will come.
  void leave(int rank) noexcept;

  // Offers `call` to its peer and returns when that has taken it; its verdict, if not empty, is thrown as a CommError.
  void send(int rank, const Collective& call, const CallDeadline& deadline);
  // Waits for the peer's offer and runs take(offer), which returns a verdict; not empty, it is thrown on both sides.
  void recv(int rank, const Collective& call, const CallDeadline& deadline,
            const std::function<std::string(const Collective& offer)>& take);

  // Breaks the group: waits end, and every later call throws CommError(message). The first message stays.
  void fail(const std::string& message);
  // Breaks the group with an AbortedError.
  void abort();
  // Wakes sleepers after WorldStatus changed.
  void wake();

 private:
  struct alignas(64) Seat {
    std::atomic<uint64_t> arrivals{0};     // meetings (enter and leave each) this rank has come to
    std::atomic<Collective::Kind> kind{};  // of the call last entered
    const Collective* call = nullptr;
  };
  // A send on its way: empty -> offered by the sender -> taking, taken by the receiver -> empty again by the sender.
  enum class Stage : uint8_t { empty, offered, taking, taken };
  struct alignas(64) Channel {
    std::atomic<Stage> stage{Stage::empty};
    const Collective* call = nullptr;
    std::string verdict;
  };
  static constexpr uint64_t kBroken = uint64_t{1} << 63;

  Seat& at(int rank) { return seats_[static_cast<size_t>(rank)]; }
  const Seat& at(int rank) const { return seats_[static_cast<size_t>(rank)]; }
  Channel& channel(int from, int to) { return channels_[static_cast<size_t>(from * size() + to)]; }

  bool broken() const { return (word_.load() & kBroken) != 0; }
  bool reached(uint64_t arrivals) const { return (word_.load() & ~kBroken) >= arrivals; }
  // Arrivals there will have been when this rank's current meeting is complete.
  uint64_t target(int rank) const { return at(rank).arrivals.load() * static_cast<uint64_t>(size()); }
  bool arrive(uint64_t target);
  void throw_if_broken();
  [[noreturn]] void throw_failure() const WITAN_REQUIRES(mutex_);
  // Breaks the group unless so many arrived. True when it is broken and they did not.
  bool break_before(uint64_t arrivals, const std::string& message) WITAN_REQUIRES(mutex_);
  void abort(const std::string& message) WITAN_REQUIRES(mutex_);

  template <class Done>
  bool spin(const Done& done) const;
  template <class Done, class Lost, class GiveUp>
  void wait(const Done& done, const Lost& lost, const GiveUp& give_up, double seconds,
            const std::function<std::string()>& late);
  std::string missing_ranks(int rank, bool only_returned) const;
  std::string why_peer_is_lost(int rank, const Collective& call);
  std::string late_peer(int rank, const Collective& call, const CallDeadline& deadline) const;

  const WorldStatus& world_;
  const std::vector<int> ranks_;
  const std::string axis_;
  const std::shared_ptr<Failure> world_failure_;
  std::vector<Seat> seats_;
  std::vector<Channel> channels_;  // [from * size + to]

  alignas(64) std::atomic<uint64_t> word_{0};  // arrivals ever made | kBroken
  std::atomic<int> sleepers_{0};
  std::atomic<int> talkers_{0};  // ranks in send and recv: they watch who enters a collective instead
  Mutex mutex_;
  CondVar changed_;
  std::string failure_ WITAN_GUARDED_BY(mutex_);  // empty: aborted
};

}  // namespace witan

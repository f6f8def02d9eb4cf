// Suspends the deadlines of a world while a debugger holds one of its ranks.
//
// A rank is held while it waits for its debugger, while one is attached to its process, and, for other hosts, while it
// sends nothing: a process that a debugger stops sends no heartbeats.
#pragma once

#include <atomic>
#include <vector>

#include "witan/comm/processes/socket.h"

namespace witan {

// Thread-safe.
class DebugHold {
 public:
  // `ranks` of the world, the only ones that are ever held; `here`: of this process.
  DebugHold(const std::vector<int>& ranks, const std::vector<int>& here);
  bool may_hold(int rank) const { return state(rank) != nullptr; }

  // Of a rank of this process: it begins, or ends, to wait for its debugger.
  void wait_for_debugger(int rank, bool waits);
  // Of a rank elsewhere.
  void hear(int rank, bool held);

  bool held_here() const;     // a rank of this process
  bool held(int rank) const;  // that rank, as it was heard
  bool held() const;          // any rank

 private:
  struct Rank {
    int rank = 0;
    bool here = false;
    std::atomic<bool> held{false};  // of a rank here: it waits for its debugger
  };
  const Rank* state(int rank) const;

  std::vector<Rank> ranks_;
  bool any_here_ = false;
};

// A process that waits, and looks no more for so long, was stopped: waits look once a second at least.
inline constexpr double kStoppedSeconds = 2;

// The end of a wait of so many seconds, which begin anew as long as a rank is held, and after this process itself was
// stopped (SIGSTOP, Ctrl-Z, a debugger): those whom it waits for may have been stopped with it.
class PatientDeadline {
 public:
  PatientDeadline(double seconds, const DebugHold* hold);  // null: no rank is ever held
  Deadline next_look() const;                              // when to ask expired() at the latest
  // `busy`: seconds that may well have passed since the last look without this process having been stopped.
  bool expired(double busy = 0);

 private:
  const double seconds_;
  const DebugHold* const hold_;
  Deadline end_, looked_;
};

}  // namespace witan

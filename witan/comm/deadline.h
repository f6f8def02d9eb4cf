// Deadlines of waits between ranks, suspended while a debugger holds a rank.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace witan {

using Deadline = std::chrono::steady_clock::time_point;
Deadline deadline_in(double seconds);
double seconds_since(Deadline then);  // negative before it

// How long the ranks of a group wait for each other in one call, and the error when a rank is late.
struct CallDeadline {
  double seconds = 300;
  // The error's message when `who` ("rank 2", "ranks 1, 3") is late; by default it names the call that `who` missed.
  std::function<std::string(const std::string& who)> late = {};

  std::string message(const std::string& who, const std::string& usual) const { return late ? late(who) : usual; }
};

// The ranks that a debugger holds. A rank is held while it waits for its debugger and while a debugger is attached to
// its process; a rank on another host also counts as held while it sends nothing, because a process that a debugger
// has stopped sends no heartbeats. Thread-safe.
class DebugHold {
 public:
  // `ranks` lists the ranks of the world that may be held; `here` those that run in this process.
  DebugHold(const std::vector<int>& ranks, const std::vector<int>& here);
  bool may_hold(int rank) const { return state(rank) != nullptr; }

  // A rank of this process begins or ends waiting for its debugger.
  void wait_for_debugger(int rank, bool waits);
  // Records the state that a rank of another process has reported.
  void hear(int rank, bool held);

  bool held_here() const;     // whether any rank of this process is held
  bool held(int rank) const;  // whether this rank is held, by its latest report
  bool held() const;          // whether any rank is held

 private:
  struct Rank {
    int rank = 0;
    bool here = false;
    std::atomic<bool> held{false};  // for a rank of this process: it waits for its debugger
  };
  const Rank* state(int rank) const;

  std::vector<Rank> ranks_;
  bool any_here_ = false;
};

// Waits check their deadline at least once a second; a process that did not for this long was stopped.
inline constexpr double kStoppedSeconds = 2;

// The deadline of a wait. It starts anew while a rank is held, and after this process itself was stopped (SIGSTOP,
// Ctrl-Z, a debugger), because the peers may have been stopped with it.
class PatientDeadline {
 public:
  using Clock = Deadline (*)();

  // Without `hold` no rank is ever held. Tests pass a clock of their own.
  PatientDeadline(double seconds, const DebugHold* hold, Clock now = std::chrono::steady_clock::now);
  Deadline next_look() const;  // call expired() again by then
  // `busy`: seconds since the last look that do not mean that this process was stopped.
  bool expired(double busy = 0);

 private:
  const double seconds_;
  const DebugHold* const hold_;
  const Clock now_;
  Deadline last_poll_, end_;
};

}  // namespace witan

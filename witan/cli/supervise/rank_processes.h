// Processes of one job on this host, a rank each, as a launcher starts them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/supervise/verdict.h"
#include "witan/comm/processes/socket.h"

namespace witan::cli {

// What a process is started with.
struct JobCall {
  std::vector<std::string> words;      // of this very program's command line, its name first
  std::vector<std::string> variables;  // "NAME=VALUE" for all ranks, besides those that tell them of each other
  int ranks = 1;
};

// Rank 0 writes to this process's outputs, and what the others write is kept. Each is in a process group of its own, so
// that a terminal's Ctrl-C reaches them only through send(), and is told to stop (SIGTERM) if the supervisor dies.
class RankProcesses {
 public:
  using Clock = std::chrono::steady_clock;

  // They meet at a free port of this host, with a secret that only they know. Throws IoError.
  explicit RankProcesses(const JobCall& call);
  ~RankProcesses();  // kills those that are left
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void send(int signal) const;  // to all that have not ended
  void send_restart() const;    // likewise: they save and end, to be started again
  // Takes note of those that have ended. Where one has failed, or rank 0 has ended, which is the last to leave a job,
  // the others are given time to end by themselves, then told to, then killed.
  void poll();
  bool ended() const;
  bool has_failed() const;  // one that ended by itself, as far as poll() knows
  std::vector<RankEnd> ends() const;
  // The end of what a rank but the first has written, each line with the rank's number before it.
  std::string said(int rank) const;

  // Within which ranks find out that another has failed: where its connections close, fractions of a second.
  static constexpr std::chrono::seconds kAlone{8}, kTold{4};

 private:
  struct Process {
    pid_t pid = -1;
    int log = -1;  // a file in memory; -1: of rank 0
    bool runs = true;
    RankEnd end;
  };

  void start(const JobCall& call, int rank, int port, const std::string& secret);
  void end_the_others();

  Socket reserved_;  // the port at which rank 0 listens
  std::vector<Process> processes_;
  std::optional<Clock::time_point> over_;  // since when a rank has failed, or rank 0 has ended
  int pressed_ = 0;                        // signals that the others were sent for it
};

}  // namespace witan::cli

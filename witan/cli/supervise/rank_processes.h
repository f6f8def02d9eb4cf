// The processes of one job on this host, one per rank, started as by a launcher.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/supervise/verdict.h"
#include "witan/comm/processes/socket.h"

namespace witan::cli {

// The command line and environment of the processes.
struct JobCall {
  std::vector<std::string> words;      // the command line of this program, its name first
  std::vector<std::string> variables;  // "NAME=VALUE" for all ranks, besides those of the job itself
  int ranks = 1;
  // The time for ranks to notice another's failure (its connections close within fractions of a second), and to end
  // after a signal.
  std::chrono::seconds notice{8}, terminate{4};
};

// Rank 0 writes to this process's outputs; the output of other ranks is kept. Each process is in its own process group,
// so that a terminal's Ctrl-C reaches it only through send(), and gets SIGTERM if the supervisor dies.
class RankProcesses {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the processes, which meet at a free port of this host with a secret of their own. Throws IoError.
  explicit RankProcesses(const JobCall& call);
  ~RankProcesses();  // kills the remaining processes
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void send(int signal) const;  // to all processes that have not ended
  void send_restart() const;    // asks them to save and end, in order to be restarted
  // Collects processes that have ended. After one has failed, or after rank 0, the last to leave a job, has ended, the
  // others are given time to end by themselves, then get a signal, and then are killed.
  void poll();
  bool ended() const;
  bool has_failed() const;  // whether a process failed by itself, as of the last poll()
  std::vector<RankEnd> ends() const;
  // The end of the output of a rank other than 0, with the rank's number before each line.
  std::string said(int rank) const;

 private:
  struct Process {
    pid_t pid = -1;
    int log = -1;  // a file in memory; -1 for rank 0
    bool runs = true;
    RankEnd end;
  };

  void start(const JobCall& call, int rank, int port, const std::string& secret);
  void end_the_others();

  const std::chrono::seconds notice_, terminate_;
  Socket reserved_;  // the port at which rank 0 listens
  std::vector<Process> processes_;
  std::optional<Clock::time_point> over_;  // when a rank failed, or rank 0 ended
  int signals_sent_ = 0;                   // signals sent to the others since then
};

}  // namespace witan::cli

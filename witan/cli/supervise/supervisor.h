// Supervises a run of `witan train` on this host: when ranks are lost, the run resumes in another layout with the
// remaining ranks, and with all of them once they are back.
#pragma once

#include <csignal>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/args/run_config.h"
#include "witan/cli/supervise/rank_processes.h"
#include "witan/planner/search/elastic_layout.h"

namespace witan::cli {

struct SuperviseOptions {
  int64_t ranks = 0;  // of the run; 0: as its configuration says
  int64_t min_ranks = 1;
  int64_t max_restarts = 3;
  double window_minutes = 60;  // older restarts do not count towards max_restarts; 0: all count
  double regrow_minutes = 0;   // lost ranks are assumed to be back after this time; 0: only after SIGHUP

  // The command line before `train`: "run --ranks 4 --".
  std::string words() const;
};

// The value of CUDA_VISIBLE_DEVICES that selects the devices at these places of `given`, the variable's present value.
// Null means all devices, by their numbers.
std::string visible_devices(const std::vector<int>& places, const char* given);

class Supervisor {
 public:
  // `words`: the call, "train" first. `given`: its configuration. `program`: the program's name. Messages go to `err`.
  // Throws ConfigError if the run cannot be trained with all its ranks.
  Supervisor(const SuperviseOptions& options, std::vector<std::string> words, RunConfig given, std::string program,
             std::FILE* err);
  ~Supervisor();  // restores the signal mask
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Returns when the run has ended. SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on and end it. SIGHUP brings lost
  // ranks back, even if it arrives while ranks end because one has failed. Throws IoError if no process can be started.
  ExitCode run();

 private:
  using Clock = RankProcesses::Clock;

  // Starts the processes once, and waits until all have ended.
  Verdict run_once();
  void answer(int signal, RankProcesses& job);
  void regrow(RankProcesses& job);
  bool is_whole() const { return places_.size() == static_cast<size_t>(ranks_); }
  // Leaves lost ranks out, or takes all back if that was asked for. Returns whether the run continues.
  bool goes_on(const Verdict& verdict);
  bool may_restart();
  void leave_out(const std::vector<int>& lost);
  void take_all_back();
  // Throws ConfigError.
  void choose_layout(int64_t least, int64_t most);
  JobCall call() const;
  void say(const std::string& text) const;

  const SuperviseOptions options_;
  const std::vector<std::string> words_;
  RunConfig given_;
  const std::string program_;
  std::FILE* const err_;
  const Facts facts_;
  int64_t ranks_ = 0;                     // number of ranks of the whole run
  std::vector<int> places_;               // numbers of the remaining ranks
  std::optional<ResolvedConfig> layout_;  // the present one
  std::deque<Clock::time_point> restarts_;
  std::optional<Clock::time_point> shrunk_;  // when the first of the missing ranks was lost
  int starts_ = 0;
  bool stopping_ = false, growing_ = false;  // why the processes were asked to stop
  sigset_t signals_, before_;
};

}  // namespace witan::cli

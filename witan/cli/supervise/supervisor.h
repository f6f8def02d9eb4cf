// Supervises a run of `witan train` on this host: when ranks are lost it resumes with those that are left, in another
// layout, and with all when they are back.
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
  int64_t ranks = 0;  // of the run; 0: as its configuration has it
  int64_t min_ranks = 1;
  int64_t max_restarts = 3;
  double window_minutes = 60;  // restarts before that are forgotten; 0: none is
  double regrow_minutes = 0;   // after which ranks that were lost are taken for back; 0: only SIGHUP says so

  // Of the command line, up to `train`: "run --ranks 4 --".
  std::string words() const;
};

// The devices of these places, as CUDA reads them, of those that `given`, a value of CUDA_VISIBLE_DEVICES, has; null:
// of all, by their numbers.
std::string visible_devices(const std::vector<int>& places, const char* given);

class Supervisor {
 public:
  // `words`: the call, "train" first. `given`: what it says. `program`: its name. Messages go to `err`. Throws
  // ConfigError where the run cannot be trained with all its ranks.
  Supervisor(const SuperviseOptions& options, std::vector<std::string> words, RunConfig given, std::string program,
             std::FILE* err);
  ~Supervisor();  // what blocked signals do is as before
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Until the run has ended. SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on and end it; SIGHUP asks for ranks that
  // were lost, also while others end because one failed. Throws IoError where no process can be started.
  ExitCode run();

 private:
  using Clock = RankProcesses::Clock;

  // One start of the processes, until all have ended.
  Verdict run_once();
  void answer(int signal, RankProcesses& job);
  void regrow(RankProcesses& job);
  bool is_whole() const { return places_.size() == static_cast<size_t>(ranks_); }
  // Takes lost ranks out, or all back where that was asked for; whether the run goes on.
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
  int64_t ranks_ = 0;                     // when all are there
  std::vector<int> places_;               // of these, numbers of those that are left
  std::optional<ResolvedConfig> layout_;  // now
  std::deque<Clock::time_point> restarts_;
  std::optional<Clock::time_point> shrunk_;  // since when ranks are missing
  int starts_ = 0;
  bool stopping_ = false, growing_ = false;  // what the processes were asked to stop for
  sigset_t signals_, before_;
};

}  // namespace witan::cli

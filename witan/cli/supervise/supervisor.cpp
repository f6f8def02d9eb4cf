#include "witan/cli/supervise/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <utility>

#include "witan/base/text.h"
#include "witan/cli/train/job.h"
#include "witan/cli/train/planning.h"
#include "witan/cli/train/train_call.h"
#include "witan/planner/search/layout_choice.h"

namespace witan::cli {
namespace {

// The signals that end a run, and those for the supervisor itself.
constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
constexpr int kOwn[] = {SIGHUP, SIGCHLD};
constexpr timespec kPoll = {0, 200'000'000};

sigset_t set_of_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kPassedOn) ::sigaddset(&set, signal);
  for (const int signal : kOwn) ::sigaddset(&set, signal);
  return set;
}

// The host's memory, for ranks on the CPU. Asking for a GPU's would take some of it, so ranks check that themselves.
void require_room(const ResolvedConfig& config) {
  if (config->parallel.on_gpu()) return;
  const int64_t ranks = config->parallel.ranks, usable = usable_memory(config);
  const int64_t needed = part_of(plan_of(config, nullptr), ranks, 1).needed_bytes();
  require<OutOfMemoryError>(usable == 0 || needed <= usable, mesh_text(config), " needs ",
                            format_bytes(static_cast<double>(needed)), " of memory, and ",
                            format_bytes(static_cast<double>(usable)), " are free");
}

std::chrono::duration<double> minutes(double number) {
  return std::chrono::duration<double>(60 * number);
}

}  // namespace

std::string visible_devices(const std::vector<int>& places, const char* given) {
  std::vector<std::string> devices, left;
  if (given != nullptr) {
    std::istringstream list(given);
    for (std::string device; std::getline(list, device, ',');) devices.push_back(device);
  }
  for (const int place : places) {
    const auto index = static_cast<size_t>(place);
    left.push_back(index < devices.size() ? devices[index] : std::to_string(place));
  }
  return fmt::format("{}", fmt::join(left, ","));
}

Supervisor::Supervisor(const SuperviseOptions& options, std::vector<std::string> words, RunConfig given,
                       std::string program, std::FILE* err)
    : options_(options),
      words_(std::move(words)),
      given_(std::move(given)),
      program_(std::move(program)),
      err_(err),
      facts_(facts_of_machine()),
      signals_(set_of_signals()) {
  if (options_.ranks > 0) given_.parallel.ranks = options_.ranks;
  Facts facts = facts_;
  if (given_.parallel.ranks == 0) given_.parallel.ranks = resolve(given_, facts)->parallel.ranks;
  ranks_ = given_.parallel.ranks;
  facts.launched = {.ranks = ranks_, .ranks_per_process = 1, .local_ranks = ranks_};
  layout_ = resolve(given_, facts);
  require<ConfigError>(options_.min_ranks <= ranks_, "--min-ranks ", options_.min_ranks, " is more than the ",
                       counted(ranks_, "rank"), " of the run: give fewer, or more --ranks");
  take_all_back();
  std::signal(SIGCHLD, SIG_DFL);  // exit codes would be lost if it were ignored
  ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

Supervisor::~Supervisor() {
  constexpr timespec kAtOnce = {0, 0};
  while (::sigtimedwait(&signals_, nullptr, &kAtOnce) > 0) continue;  // drops signals that arrived too late
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

ExitCode Supervisor::run() {
  say(cat(counted(ranks_, "rank"), ", a process each: ", mesh_text(*layout_)));
  for (;;) {
    const Verdict verdict = run_once();
    if (verdict.outcome == Outcome::stopped && growing_ && !stopping_) {
      take_all_back();
      choose_layout(ranks_, ranks_);
      say(cat("all ", ranks_, " ranks start again: ", mesh_text(*layout_)));
      continue;
    }
    if (verdict.outcome != Outcome::failed) return verdict.code;
    if (!goes_on(verdict)) return verdict.code;
  }
}

Verdict Supervisor::run_once() {
  growing_ = false;
  RankProcesses job(call());
  ++starts_;
  while (!job.ended()) {
    const int signal = ::sigtimedwait(&signals_, nullptr, &kPoll);
    job.poll();  // first, since the meaning of a signal depends on which ranks have failed
    if (signal > 0) answer(signal, job);
    const bool due = options_.regrow_minutes > 0 && shrunk_ && !growing_ && !stopping_;
    if (due && Clock::now() - *shrunk_ >= minutes(options_.regrow_minutes)) regrow(job);
  }
  Verdict verdict = judge(job.ends(), stopping_ || growing_);
  if (verdict.outcome == Outcome::done || verdict.outcome == Outcome::stopped)
    if (!verdict.reason.empty()) say(verdict.reason);
  for (const int rank : verdict.lost) {
    std::fputs(job.said(rank).c_str(), err_);
    if (verdict.outcome == Outcome::refused) break;  // all ranks print the same
  }
  return verdict;
}

void Supervisor::answer(int signal, RankProcesses& job) {
  if (signal == SIGCHLD) return;
  if (signal != SIGHUP) {
    stopping_ = true;
    job.send(signal);
  } else if (is_whole() && !job.has_failed()) {
    say("SIGHUP: no rank is missing");
  } else if (!growing_ && !stopping_) {
    regrow(job);
  }
}

void Supervisor::regrow(RankProcesses& job) {
  growing_ = true;
  // If a rank has failed, the others end anyway, and cannot save together.
  const bool ending = job.has_failed();
  say(cat(ending ? "a rank has failed: when the others have ended, the run" : "the run is saved, and",
          " starts again with all ", ranks_, " ranks"));
  if (!ending) job.send_restart();
}

bool Supervisor::goes_on(const Verdict& verdict) {
  if (stopping_) {
    say(verdict.reason + " while the run was stopping: the same command resumes it from its last checkpoint");
    return false;
  }
  if (!may_restart()) {
    say(
        fmt::format("{}, and --max-restarts {} allows no further restart{}; the same command resumes the run from its "
                    "last checkpoint",
                    verdict.reason, options_.max_restarts,
                    options_.window_minutes > 0 ? fmt::format(" within {:g} minutes", options_.window_minutes) : ""));
    return false;
  }
  const std::string restart = cat("restart ", restarts_.size(), " of ", options_.max_restarts);
  if (growing_) {  // SIGHUP arrived while ranks ended, or before one failed
    take_all_back();
    choose_layout(ranks_, ranks_);
    say(cat(verdict.reason, ": all ", ranks_, " ranks start again (", mesh_text(*layout_), "), ", restart));
    return true;
  }
  leave_out(verdict.lost);
  const auto left = static_cast<int64_t>(places_.size());
  const std::string lost = fmt::format("{}; {} of {} are left", verdict.reason, left, ranks_);
  std::string how;
  try {
    if (left < options_.min_ranks) throw ConfigError(cat("--min-ranks ", options_.min_ranks));
    choose_layout(options_.min_ranks, left);
    how = "continuing with " + counted((*layout_)->parallel.ranks, "rank");
  } catch (const ConfigError& error) {
    take_all_back();
    choose_layout(ranks_, ranks_);
    how = cat(error.what(), ": all ", ranks_, " start again");
  }
  say(fmt::format("{}: {} ({}), {}", lost, how, mesh_text(*layout_), restart));
  return true;
}

bool Supervisor::may_restart() {
  const Clock::time_point now = Clock::now();
  if (options_.window_minutes > 0)
    while (!restarts_.empty() && now - restarts_.front() > minutes(options_.window_minutes)) restarts_.pop_front();
  if (static_cast<int64_t>(restarts_.size()) >= options_.max_restarts) return false;
  restarts_.push_back(now);
  return true;
}

void Supervisor::leave_out(const std::vector<int>& lost) {
  if (lost.empty()) return;
  std::vector<int> left;
  for (size_t rank = 0; rank < places_.size(); ++rank)
    if (std::ranges::find(lost, static_cast<int>(rank)) == lost.end()) left.push_back(places_[rank]);
  places_ = std::move(left);
  if (!shrunk_) shrunk_ = Clock::now();
}

void Supervisor::take_all_back() {
  places_.resize(static_cast<size_t>(ranks_));
  std::iota(places_.begin(), places_.end(), 0);
  shrunk_.reset();
}

void Supervisor::choose_layout(int64_t least, int64_t most) {
  layout_ = elastic_layout(given_, facts_, {least, most}, require_room);
}

std::string SuperviseOptions::words() const {
  const SuperviseOptions usual;
  std::string words = "run";
  const auto add = [&](const char* flag, auto value, auto usual_value) {
    if (value != usual_value) words += cat(" ", flag, " ", value);
  };
  add("--ranks", ranks, usual.ranks);
  add("--min-ranks", min_ranks, usual.min_ranks);
  add("--max-restarts", max_restarts, usual.max_restarts);
  add("--restart-window", window_minutes, usual.window_minutes);
  add("--regrow", regrow_minutes, usual.regrow_minutes);
  return words + " --";
}

JobCall Supervisor::call() const {
  JobCall call;
  call.words = words_;
  call.words.insert(call.words.begin(), program_);
  call.ranks = static_cast<int>((*layout_)->parallel.ranks);
  call.variables = {cat(kLayoutVariable, "=", layout_keys(layout_->given())),
                    cat(kResumeVariable, "=", starts_ > 0 ? 1 : 0), cat(kCallVariable, "=", options_.words())};
  constexpr const char* kDevices = "CUDA_VISIBLE_DEVICES";
  if (!is_whole() && (*layout_)->parallel.on_gpu())
    call.variables.push_back(cat(kDevices, "=", visible_devices(places_, std::getenv(kDevices))));
  return call;
}

void Supervisor::say(const std::string& text) const {
  std::fputs(("ranks        " + text + "\n").c_str(), err_);
  std::fflush(err_);
}

}  // namespace witan::cli

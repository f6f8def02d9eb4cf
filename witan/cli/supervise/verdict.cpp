#include "witan/cli/supervise/verdict.h"

#include <algorithm>
#include <csignal>
#include <cstring>

namespace witan::cli {
namespace {

bool has_code(const RankEnd& end, ExitCode code) {
  return end.signal == 0 && end.code == static_cast<int>(code);
}

bool stopped(const RankEnd& end) {
  return has_code(end, ExitCode::preempted) || has_code(end, ExitCode::interrupted);
}

// The exit code of a rank that ends because another one is lost.
bool lost_another(const RankEnd& end) {
  return has_code(end, ExitCode::rank_lost);
}

bool done(const RankEnd& end) {
  return has_code(end, ExitCode::done);
}

// Whether the process itself is the cause: it was killed, or found an error.
bool failed_by_itself(const RankEnd& end) {
  return !end.ended_by_supervisor && is_failure(end) && !lost_another(end);
}

// Whether a process would end with the same error again after a restart.
bool is_final(const RankEnd& end) {
  constexpr ExitCode kFinal[] = {ExitCode::usage,    ExitCode::config,        ExitCode::data,     ExitCode::checkpoint,
                                 ExitCode::diverged, ExitCode::out_of_memory, ExitCode::disk_full};
  return std::ranges::any_of(kFinal, [&](ExitCode code) { return has_code(end, code); });
}

// Whether a request to stop ended the process before it could handle the signal.
void take_for_stopped(RankEnd& end) {
  const bool asked_to = end.signal == SIGTERM || end.signal == SIGUSR1 || end.signal == SIGUSR2;
  if (end.ended_by_supervisor || !(asked_to || end.signal == SIGINT)) return;
  end = {.code = static_cast<int>(asked_to ? ExitCode::preempted : ExitCode::interrupted)};
}

template <class Property>
std::vector<int> ranks_that(const std::vector<RankEnd>& ends, const Property& property) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < ends.size(); ++rank)
    if (property(ends[rank])) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

std::string how(const RankEnd& end) {
  if (end.ended_by_supervisor) return "did not end when others had failed";
  if (end.signal != 0) return cat("was killed by signal ", end.signal, " (", ::strsignal(end.signal), ")");
  return cat("ended with exit code ", end.code);
}

// "rank 1 ended with exit code 1, and so 2 more".
Verdict verdict(Outcome outcome, const std::vector<RankEnd>& ends, const std::vector<int>& to_blame) {
  const int first = to_blame.front();
  const RankEnd& end = ends[static_cast<size_t>(first)];
  std::string reason = cat("rank ", first, " ", how(end));
  if (to_blame.size() > 1) reason += cat(", and ", to_blame.size() - 1, " more failed");
  const ExitCode code = end.signal != 0 || end.ended_by_supervisor || stopped(end) ? ExitCode::rank_lost
                                                                                   : static_cast<ExitCode>(end.code);
  return {outcome, code, to_blame, std::move(reason)};
}

// Whether the exit of rank 0, the last to leave, means that the run is finished or saved. A rank 0 that stops before
// there is anything to save leaves the others behind.
bool is_over(const RankEnd& first, const std::vector<int>& left_alone) {
  return !first.ended_by_supervisor && (done(first) || (stopped(first) && left_alone.empty()));
}

// The verdict of rank 0's exit, with a note on ranks that did not end after the run.
Verdict over(const std::vector<RankEnd>& ends, const std::vector<int>& hung) {
  const auto code = static_cast<ExitCode>(ends.front().code);
  std::string reason = cat("rank ", hung.front(), " did not end when the run was over, and was made to");
  if (hung.size() > 1) reason += cat("; so did ", hung.size() - 1, " more");
  return {code == ExitCode::done ? Outcome::done : Outcome::stopped, code, {}, std::move(reason)};
}

}  // namespace

bool is_failure(const RankEnd& end) {
  return end.signal != 0 || !(done(end) || stopped(end));
}

Verdict judge(const std::vector<RankEnd>& given, bool asked) {
  std::vector<RankEnd> ends = given;
  if (asked) std::ranges::for_each(ends, take_for_stopped);
  const auto killed = ranks_that(ends, [](const RankEnd& e) { return e.signal != 0 && failed_by_itself(e); });
  const auto final = ranks_that(ends, [](const RankEnd& e) { return failed_by_itself(e) && is_final(e); });
  const auto failed = ranks_that(ends, failed_by_itself);
  // After a rank was killed others may end with any error, which need not recur after a restart.
  if (killed.empty() && !final.empty()) return verdict(Outcome::refused, ends, final);
  if (!failed.empty()) return verdict(Outcome::failed, ends, killed.empty() ? failed : killed);
  const auto hung = ranks_that(ends, [](const RankEnd& e) { return e.ended_by_supervisor; });
  const auto left_alone = ranks_that(ends, lost_another);
  if (!hung.empty()) return is_over(ends.front(), left_alone) ? over(ends, hung) : verdict(Outcome::failed, ends, hung);
  const auto stopping = ranks_that(ends, stopped);
  // A rank that stops by itself before there is anything to save leaves the others behind.
  if (!left_alone.empty() && !(asked && !stopping.empty())) {
    if (!stopping.empty()) return verdict(Outcome::failed, ends, stopping);
    return {Outcome::failed, ExitCode::rank_lost, {}, "the ranks lost the connections to each other"};
  }
  if (stopping.empty() || done(ends.front())) return {};
  const int first = stopped(ends.front()) ? 0 : stopping.front();
  return {Outcome::stopped, static_cast<ExitCode>(ends[static_cast<size_t>(first)].code), {}, ""};
}

}  // namespace witan::cli

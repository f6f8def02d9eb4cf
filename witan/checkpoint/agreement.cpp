#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/texts.h"

namespace witan {
namespace {

struct Outcome {
  ExitCode code = ExitCode::done;
  std::string message;
};

Outcome outcome_of(const std::function<void()>& body) try {
  body();
  return {};
} catch (const IoError& e) {
  return {ExitCode::checkpoint, e.what()};
} catch (const Error& e) {
  return {e.code(), e.what()};
} catch (const fs::filesystem_error& e) {
  const bool full = e.code() == std::errc::no_space_on_device;
  return {full ? ExitCode::disk_full : ExitCode::checkpoint, e.what()};
} catch (const std::exception& e) {
  return {ExitCode::internal, e.what()};
}

[[noreturn]] void throw_outcome(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::checkpoint:
      throw CheckpointError(message);
    case ExitCode::disk_full:
      throw DiskFullError(message);
    default:
      throw Error(code, message);
  }
}

}  // namespace

void run_collectively(Group& group, Stream& stream, const std::function<void()>& body) {
  const Outcome mine = outcome_of(body);
  const std::vector<int64_t> codes = gather_numbers(group, stream, static_cast<int64_t>(mine.code));
  const auto failed = std::ranges::find_if(codes, [](int64_t code) { return code != 0; });
  if (failed == codes.end()) return;
  const auto rank = static_cast<int>(failed - codes.begin());
  const std::string message = broadcast_text(group, stream, mine.message, rank);
  throw_outcome(static_cast<ExitCode>(*failed), group.size() == 1 ? message : cat(message, " (rank ", rank, ")"));
}

CallDeadline checkpoint_deadline(double seconds, const std::string& doing) {
  const double minutes = seconds / 60;
  return {seconds, [=](const std::string& who) {
            return cat("cannot ", doing, ": the others waited ", minutes, " minutes for ", who,
                       " (checkpoint_timeout_minutes). Complete checkpoints are intact, and the "
                       "same command resumes from the newest; if it is only a slow disk, with "
                       "--checkpoint-timeout-minutes ",
                       2 * minutes);
          }};
}

}  // namespace witan

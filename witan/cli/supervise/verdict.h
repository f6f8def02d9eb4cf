// What is to be done when the processes of a job have ended: decided from their ends alone.
#pragma once

#include <string>
#include <vector>

#include "witan/base/error.h"

namespace witan::cli {

// How a rank's process ended.
struct RankEnd {
  int code = 0;              // its exit code
  int signal = 0;            // that ended it; 0: it exited
  bool made_to_end = false;  // by the supervisor: it went on when others had failed, or when the run was over
};

enum class Outcome : uint8_t {
  done,     // the run is finished
  stopped,  // it was asked to stop, and did
  refused,  // it would end in the same way again: a mistake of the configuration, no disk left, a loss that diverges
  failed,   // the run can be resumed from its last checkpoint
};

struct Verdict {
  Outcome outcome = Outcome::done;
  ExitCode code = ExitCode::done;  // for the supervisor, if it ends here
  std::vector<int> lost;           // ranks that are to blame; none where ranks only lost each other
  std::string reason;  // "rank 2 was killed by signal 9 (Killed)"; of `refused` and `failed`; else of what was amiss
};

// `asked`: the supervisor has passed on a signal that asks the run to stop.
Verdict judge(const std::vector<RankEnd>& ends, bool asked);

// Whether a process that ended so takes the others with it.
bool is_failure(const RankEnd& end);

}  // namespace witan::cli

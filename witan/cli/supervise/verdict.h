// Decides from the way in which the processes of a job have ended how to go on.
#pragma once

#include <string>
#include <vector>

#include "witan/base/error.h"

namespace witan::cli {

// How a rank's process ended.
struct RankEnd {
  int code = 0;                      // its exit code
  int signal = 0;                    // the signal that ended it; 0: it exited
  bool ended_by_supervisor = false;  // ended by the supervisor, after others had failed or the run was over
};

enum class Outcome : uint8_t {
  done,     // the run is finished
  stopped,  // the run was asked to stop, and did
  refused,  // it would end in the same way again: a mistake in the configuration, a full disk, a diverging loss
  failed,   // the run can be resumed from its last checkpoint
};

struct Verdict {
  Outcome outcome = Outcome::done;
  ExitCode code = ExitCode::done;  // of the supervisor, if it ends here
  std::vector<int> lost;           // the ranks that failed; none if ranks only lost contact with each other
  std::string reason;              // "rank 2 was killed by signal 9 (Killed)"; otherwise empty, or what was unusual
};

// `asked`: the supervisor has passed on a signal that asks the run to stop.
Verdict judge(const std::vector<RankEnd>& ends, bool asked);

// Whether a process that ended in this way ends the others too.
bool is_failure(const RankEnd& end);

}  // namespace witan::cli

#include "witan/comm/process_failure.h"

#include "witan/base/error.h"
#include "witan/comm/rendezvous.h"

namespace witan {

void throw_failure(const ProcessFailure& failure, const std::string& host) {
  const std::string who = cat("rank ", failure.rank, " on ", host);
  switch (failure.kind) {
    case ProcessFailure::Kind::lost:
      throw CommError(cat(who, " is lost: ", failure.text));
    case ProcessFailure::Kind::disagreement:
      throw CommError(failure.text);
    default:
      throw AbortedError(cat("stopped, as ", who, " failed", failure.text.empty() ? "" : ": ", failure.text));
  }
}

}  // namespace witan

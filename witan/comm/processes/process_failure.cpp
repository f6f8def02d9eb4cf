#include "witan/comm/processes/process_failure.h"

#include "witan/comm/processes/rendezvous.h"

namespace witan {

std::string words_of(const ProcessFailure& failure, const std::string& host) {
  const std::string who = cat("rank ", failure.rank, " on ", host);
  switch (failure.kind) {
    case ProcessFailure::Kind::lost:
      return cat(who, " is lost: ", failure.text);
    case ProcessFailure::Kind::disagreement:
      return failure.text;
    default:
      return cat("stopped, as ", who, " failed", failure.text.empty() ? "" : ": ", failure.text);
  }
}

void throw_failure(const ProcessFailure& failure, const std::string& host) {
  const std::string words = words_of(failure, host);
  if (failure.kind == ProcessFailure::Kind::lost) throw LostError(words);
  if (failure.kind == ProcessFailure::Kind::disagreement) throw CommError(words);
  throw AbortedError(words);
}

}  // namespace witan

// Why the ranks of a job stop: told by the first that knows to all others.
#pragma once

#include <cstdint>
#include <string>

namespace witan {

struct ProcessFailure {
  enum class Kind : uint32_t {
    lost,          // the rank's process, its host or the network to it is gone
    disagreement,  // `text` says it all, and is every rank's error
    failed,        // the rank has an error of its own
  };
  Kind kind = Kind::failed;
  int rank = 0;
  std::string text;
};

// Throws what a rank is told: CommError, or AbortedError where another one has the error itself.
[[noreturn]] void throw_failure(const ProcessFailure& failure, const std::string& host);

}  // namespace witan

// The reason why the ranks of a job stop, which the first rank that knows it sends to all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/base/error.h"

namespace witan {

// A rank that is gone, found while waiting or sending.
class LostError : public CommError {
 public:
  using CommError::CommError;
};

struct ProcessFailure {
  enum class Kind : uint32_t {
    lost,           // the rank's process, its host or the network to it is gone
    disagreement,   // `text` is the complete error of every rank
    failed,         // the rank has an error of its own
    configuration,  // `text` is the complete ConfigError of every rank
  };
  Kind kind = Kind::failed;
  int rank = 0;
  std::string text;
};

std::string words_of(const ProcessFailure& failure, const std::string& host);

// A failure as bytes, for other processes: kMostFailureBytes (inbox.h) at most, for which a long text is cut.
std::vector<std::byte> pack_failure(const ProcessFailure& failure);
// Nothing for bytes that do not describe a failure of one of `ranks` ranks.
std::optional<ProcessFailure> parse_failure(std::span<const std::byte> bytes, int ranks);

// Throws the failure on other ranks: LostError, CommError, ConfigError, or AbortedError if another rank has the error
// itself.
[[noreturn]] void throw_failure(const ProcessFailure& failure, const std::string& host);

}  // namespace witan

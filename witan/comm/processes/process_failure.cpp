#include "witan/comm/processes/process_failure.h"

#include <algorithm>
#include <cstring>

#include "witan/comm/failure.h"
#include "witan/comm/processes/inbox.h"

namespace witan {

std::string words_of(const ProcessFailure& failure, const std::string& host) {
  const std::string who = cat("rank ", failure.rank, " on ", host);
  switch (failure.kind) {
    case ProcessFailure::Kind::lost:
      return cat(who, " is lost: ", failure.text);
    case ProcessFailure::Kind::disagreement:
    case ProcessFailure::Kind::configuration:
      return failure.text;
    default:
      return cat("stopped, as ", who, " failed", failure.text.empty() ? "" : ": ", failure.text);
  }
}

std::vector<std::byte> pack_failure(const ProcessFailure& failure) {
  const uint32_t head[] = {static_cast<uint32_t>(failure.kind), static_cast<uint32_t>(failure.rank)};
  std::vector<std::byte> bytes(sizeof head + std::min(failure.text.size(), kMostFailureBytes / 2));
  std::memcpy(bytes.data(), head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, failure.text.data(), bytes.size() - sizeof head);
  return bytes;
}

std::optional<ProcessFailure> parse_failure(std::span<const std::byte> bytes, int ranks) {
  uint32_t head[2] = {};
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(head, bytes.data(), sizeof head);
  if (head[0] > static_cast<uint32_t>(ProcessFailure::Kind::configuration) || head[1] >= static_cast<uint32_t>(ranks))
    return std::nullopt;
  const auto text = bytes.subspan(sizeof head);
  ProcessFailure failure{static_cast<ProcessFailure::Kind>(head[0]), static_cast<int>(head[1]),
                         std::string(reinterpret_cast<const char*>(text.data()), text.size())};
  const bool says_it_all =
      failure.kind == ProcessFailure::Kind::disagreement || failure.kind == ProcessFailure::Kind::configuration;
  if (says_it_all && failure.text.empty()) return std::nullopt;
  return failure;
}

void throw_failure(const ProcessFailure& failure, const std::string& host) {
  const std::string words = words_of(failure, host);
  if (failure.kind == ProcessFailure::Kind::lost) throw LostError(words);
  if (failure.kind == ProcessFailure::Kind::disagreement) throw CommError(words);
  if (failure.kind == ProcessFailure::Kind::configuration) throw ConfigError(words);
  throw AbortedError(words);
}

}  // namespace witan

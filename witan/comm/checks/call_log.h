// The last calls of a rank that another back end carries out, for ranks that compare some calls at once instead of
// coming together for each: none waits for the others' hosts in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "witan/comm/checks/call_terms.h"

namespace witan {

class CallLog {
 public:
  struct Call {
    uint64_t number;  // the same on all ranks
    std::vector<std::byte> terms;
  };

  void add(uint64_t number, const CallTerms& terms);
  void clear();
  const std::vector<Call>& calls() const { return calls_; }
  // Of what ranks must agree on, of all calls in their order.
  uint64_t digest() const { return digest_; }

 private:
  std::vector<Call> calls_;
  uint64_t digest_ = 0;
};

// As bytes, for a process elsewhere; and what `rank` of the world sent. Throws CommError for bytes that are no calls.
std::vector<std::byte> pack(std::span<const CallLog::Call> calls);
std::vector<CallLog::Call> unpack_calls(std::span<const std::byte> bytes, int rank);

// Empty, or how packed terms differ, by rank of the group; empty ones are not known. Throws CommError for bytes that
// are no terms.
std::string disagreement(const GroupNames& names, std::span<const std::span<const std::byte>> terms);
// The same for the first call on which ranks differ of those that several of these logs have; by rank.
std::string disagreement(const GroupNames& names, std::span<const std::vector<CallLog::Call>> logs);

}  // namespace witan

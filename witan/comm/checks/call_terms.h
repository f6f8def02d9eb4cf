// The properties of a collective call that all ranks of a group must agree on, and the error messages when they differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "witan/comm/group.h"

namespace witan {

// A call without its tensors.
struct CallTerms {
  Collective::Kind kind = Collective::Kind::barrier;
  Reduce reduce = Reduce::sum;
  int peer = 0;
  uint64_t parts = 0;  // a hash of begins, or of the sizes and owners of pieces
  DType dtype = DType::f32;
  Shape shape;           // of in, or of out where there is no in
  bool moves = false;    // there is either
  int64_t out_rows = 0;  // of all_to_all
  std::span<const int64_t> send_counts, recv_counts;
  std::span<const int64_t> begins;  // of reduce_scatter_uneven
  TraceContext trace_context = {};  // where its rank is
};
CallTerms terms_of(const Collective& call);  // counts and begins stay where the call has them
CallTerms terms_without_counts(const Collective& call);
std::string describe(const CallTerms& terms);
// "[2, 1, 1]": the elements of each rank's part of an uneven collective, the first 16; empty for other calls.
std::string sizes_of(const CallTerms& terms);
// The message for two ranks' calls that differ only in the sizes of their parts, which sizes_of() describes.
std::string parts_disagreement(int rank, const std::string& sizes, int other, const std::string& other_sizes);

// The axis of a group, and its ranks in the world.
struct GroupNames {
  const std::string& axis;
  const std::vector<int>& ranks;
};

// Whether ranks of a group may make these calls at once. The rows of an uneven exchange may differ in number from rank
// to rank, everything else must not.
bool same_terms(const CallTerms& a, const CallTerms& b);
// A hash that is equal for calls that agree.
uint64_t hash_of(const CallTerms& terms);
// Whether the rank has the rows that it sends in an uneven exchange, and room for those that it receives.
bool counts_fit(const CallTerms& terms);
// Empty, or how the calls of the ranks differ. Every rank finds the same words.
std::string disagreement(const GroupNames& names, std::span<const CallTerms> calls);
// Empty, or how a send of rank `from` differs from what rank `to` expects; ranks of the group.
std::string misfit(const GroupNames& names, int from, const CallTerms& sent, int to, const CallTerms& expected);

// Terms as bytes, for a process elsewhere.
std::vector<std::byte> pack(const CallTerms& terms);
// Terms, and what they point to.
struct PackedTerms {
  CallTerms terms;
  std::vector<int64_t> counts;  // and begins
  std::vector<char> words;      // of the trace context
};
// Unpacks what `rank` of the world sent in a group of `size` ranks. Throws CommError for bytes that are no terms.
PackedTerms unpack(std::span<const std::byte> bytes, int size, int rank);

// The last calls of a rank that another back end carries out. Ranks compare several calls at once instead of meeting
// for each, so that none waits for the others' hosts in between.
class CallLog {
 public:
  struct Call {
    uint64_t number;  // the same on all ranks
    std::vector<std::byte> terms;
  };

  void add(uint64_t number, const CallTerms& terms);
  void clear();
  const std::vector<Call>& calls() const { return calls_; }
  // A digest of the terms that ranks must agree on, of all calls in their order.
  uint64_t digest() const { return digest_; }

 private:
  std::vector<Call> calls_;
  uint64_t digest_ = 0;
};

// Converts calls to bytes for other processes, and back from what `rank` of the world sent. Throws CommError for bytes
// that are no calls.
std::vector<std::byte> pack(std::span<const CallLog::Call> calls);
std::vector<CallLog::Call> unpack_calls(std::span<const std::byte> bytes, int rank);

// Empty, or how packed terms differ, by rank of the group; empty ones are not known. Throws CommError for bytes that
// are no terms.
std::string disagreement(const GroupNames& names, std::span<const std::span<const std::byte>> terms);
// Empty, or how ranks differ on the first call that several of these logs have and do not agree on; logs are by rank.
std::string disagreement(const GroupNames& names, std::span<const std::vector<CallLog::Call>> logs);

}  // namespace witan

#include "witan/comm/checks/call_log.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"

namespace witan {
namespace {

struct CallHead {
  uint64_t number, bytes;
};

}  // namespace

void CallLog::add(uint64_t number, const CallTerms& terms) {
  calls_.push_back({number, pack(terms)});
  const uint64_t words[] = {digest_, number, hash_of(terms)};
  digest_ = hash64(words, sizeof words);
}

void CallLog::clear() {
  calls_.clear();
  digest_ = 0;
}

std::vector<std::byte> pack(std::span<const CallLog::Call> calls) {
  std::vector<std::byte> bytes;
  for (const auto& [number, terms] : calls) {
    const CallHead head{number, terms.size()};
    const auto words = std::as_bytes(std::span(&head, 1));
    bytes.insert(bytes.end(), words.begin(), words.end());
    bytes.insert(bytes.end(), terms.begin(), terms.end());
  }
  return bytes;
}

std::vector<CallLog::Call> unpack_calls(std::span<const std::byte> bytes, int rank) {
  std::vector<CallLog::Call> calls;
  while (!bytes.empty()) {
    CallHead head{};
    const bool whole = bytes.size() >= sizeof head;
    if (whole) std::memcpy(&head, bytes.data(), sizeof head);
    require<CommError>(whole && head.bytes <= bytes.size() - sizeof head, "malformed list of calls from rank ", rank);
    const auto terms = bytes.subspan(sizeof head, head.bytes);
    calls.push_back({head.number, {terms.begin(), terms.end()}});
    bytes = bytes.subspan(sizeof head + head.bytes);
  }
  return calls;
}

std::string disagreement(const GroupNames& names, std::span<const std::span<const std::byte>> terms) {
  std::vector<size_t> members;
  std::vector<int> world_ranks;
  std::vector<PackedTerms> packed;  // moved, their counts stay where they are
  for (size_t rank = 0; rank < terms.size(); ++rank) {
    if (terms[rank].empty()) continue;
    members.push_back(rank);
    world_ranks.push_back(names.ranks[rank]);
    packed.push_back(unpack(terms[rank], static_cast<int>(terms.size()), names.ranks[rank]));
  }
  std::vector<CallTerms> calls;
  std::vector<std::vector<int64_t>> counts;  // rows between members alone
  const auto among_members = [&](std::span<const int64_t> all) -> std::span<const int64_t> {
    if (all.empty()) return all;
    std::vector<int64_t>& some = counts.emplace_back();
    for (const size_t member : members) some.push_back(all[member]);
    return some;
  };
  for (const PackedTerms& one : packed) {
    CallTerms& call = calls.emplace_back(one.terms);
    call.send_counts = among_members(call.send_counts);
    call.recv_counts = among_members(call.recv_counts);
  }
  return calls.empty() ? "" : disagreement({names.axis, world_ranks}, calls);
}

std::string disagreement(const GroupNames& names, std::span<const std::vector<CallLog::Call>> logs) {
  std::set<uint64_t> numbers;
  for (const auto& log : logs)
    for (const CallLog::Call& call : log) numbers.insert(call.number);
  for (const uint64_t number : numbers) {
    std::vector<std::span<const std::byte>> terms;
    for (const auto& log : logs) {
      const auto found = std::ranges::find(log, number, &CallLog::Call::number);
      terms.push_back(found == log.end() ? std::span<const std::byte>() : std::span(found->terms));
    }
    if (std::string verdict = disagreement(names, terms); !verdict.empty()) return verdict;
  }
  return "";
}

}  // namespace witan

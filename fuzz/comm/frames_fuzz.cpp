// The bytes that a rank sends after the handshake: frames in pieces of any size, with calls, failures, departures and
// data. The first byte is the number of bytes that arrive at a time, and whether data may have been dropped.
#include <algorithm>
#include <array>

#include "fuzz/support.h"
#include "witan/comm/checks/call_terms.h"
#include "witan/comm/processes/inbox.h"
#include "witan/comm/processes/process_failure.h"

namespace {

using namespace witan;

constexpr int kRanks = 2;
const std::vector<int> kGroup = {0, 1};
const std::string kAxis = "expert";

// Reads a call like a group does, and compares it with its own call.
void read_call(const Inbox::Bytes& words) {
  fuzz::expect_own_errors([&] {
    const PackedTerms theirs = unpack(words, kRanks, 1);
    const CallTerms calls[] = {theirs.terms, theirs.terms};
    CallTerms mine;
    const CallTerms others[] = {mine, theirs.terms};
    disagreement({kAxis, kGroup}, calls);
    disagreement({kAxis, kGroup}, others);
    misfit({kAxis, kGroup}, 1, theirs.terms, 0, mine);
    assert(!sizes_of(theirs.terms).empty() || theirs.terms.begins.size() < 2);
    assert(describe(unpack(pack(theirs.terms), kRanks, 1).terms) == describe(theirs.terms));
  });
}

// Reads the words as a log of several calls.
void read_log(const Inbox::Bytes& words) {
  fuzz::expect_own_errors([&] {
    const std::vector<std::vector<CallLog::Call>> logs = {unpack_calls(words, 1), unpack_calls(words, 1)};
    assert(pack(logs[0]) == words);
    disagreement({kAxis, kGroup}, logs);
  });
}

void read_frame(Inbox& inbox) {
  const FrameHeader& header = inbox.header();
  if (header.kind == kFailure) {
    if (const auto failure = parse_failure(inbox.payload(), kRanks)) {
      assert(failure->rank >= 0 && failure->rank < kRanks && !words_of(*failure, "here").empty());
      assert(parse_failure(pack_failure(*failure), kRanks)->rank == failure->rank);
    }
  } else if (header.kind == kDepartures) {
    if (const auto departures = parse_departures(inbox.payload(), kRanks)) {
      for (const Departure& one : *departures) assert(one.rank >= 0 && one.rank < kRanks);
      assert(pack_departures(*departures) == inbox.payload());
    }
  } else if (header.kind < kControls) {
    const auto kind = static_cast<Control>(header.kind);
    assert(inbox.has_control(header.channel, kind));
    // Some messages are read later, or never.
    if (header.channel % 4 == 3) return;
    const Inbox::Bytes words = inbox.next_control(header.channel, kind);
    read_call(words);
    read_log(words);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static Inbox::Bytes trash(kMostDataBytes);
  const bool dropped = data[0] >= 0x80;
  const size_t at_once = (data[0] & 0x7f) == 0 ? size : data[0] & 0x7f;
  auto left = std::as_bytes(std::span(data, size)).subspan(1);
  // Every buffer has its exact size, so that the address sanitizer detects writes out of bounds.
  std::array<Inbox::Bytes, 3> wanted = {Inbox::Bytes(5), Inbox::Bytes(2), Inbox::Bytes(20)};
  Inbox inbox;
  for (Inbox::Bytes& bytes : wanted) inbox.want(1, bytes.data(), static_cast<int64_t>(bytes.size()));
  while (!left.empty()) {
    const auto room = inbox.room(trash);
    assert(!room.empty());
    const auto piece = left.first(std::min({at_once, room.size(), left.size()}));
    std::ranges::copy(piece, room.begin());
    left = left.subspan(piece.size());
    const auto event = inbox.advance(piece.size(), dropped);
    if (event == Inbox::Event::malformed) break;
    if (event == Inbox::Event::frame) read_frame(inbox);
    if (dropped && left.size() % 7 == 0) inbox.drop(1);
  }
  return 0;
}

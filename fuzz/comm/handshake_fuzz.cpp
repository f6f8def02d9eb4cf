// Both ends of a handshake, and a party between them. The first byte selects whether the bytes go to the accepting end,
// to the connecting end, or change the messages between both; the second is the number of bytes that arrive at a time.
#include <algorithm>
#include <cstring>

#include "fuzz/support.h"
#include "witan/comm/processes/handshake.h"

namespace {

using namespace witan;
using State = HandshakeStep::State;

Greeting numbered(uint8_t number) {
  Greeting greeting;
  greeting.nonce.fill(number);
  return greeting;
}

// Feeds the bytes to an end until it is done or has refused; returns its last step.
template <class End>
HandshakeStep hear(End& end, std::span<const std::byte> words, size_t at_once) {
  HandshakeStep step;
  for (auto room = end.room(); !room.empty() && !words.empty(); room = end.room()) {
    const auto piece = words.first(std::min({at_once, room.size(), words.size()}));
    std::ranges::copy(piece, room.begin());
    words = words.subspan(piece.size());
    step = end.advance(piece.size());
    assert((step.state == State::refused || step.state == State::crossed) == !step.why.empty());
    assert((step.state == State::waits) == !end.room().empty());
  }
  return step;
}

// Two ranks described by the bytes, one of which may be connecting to the other at the same time; at most one byte of
// each message between them is changed.
void hear_each_other(std::span<const std::byte> words, size_t at_once) {
  int32_t said[8] = {};
  std::memcpy(said, words.data(), std::min(sizeof said, words.size()));
  words = words.subspan(std::min(sizeof said, words.size()));
  const Member zero{said[0], said[1], "secret", "here", 0};
  const Member one{said[3], said[4], said[7] == 0 ? "guess" : "secret", "there", said[6]};
  Roster roster{{said[2]}, {}};
  const bool crosses = said[7] == 1;
  if (crosses) roster.connecting = roster.expected;
  AcceptingEnd accepting(zero, roster, numbered(1));
  ConnectingEnd connecting(one, said[5], numbered(2));
  bool changed = false;
  const auto carried = [&](std::span<const std::byte> from, uint8_t message) {
    std::vector<std::byte> bytes(from.begin(), from.end());
    for (auto rest = words; rest.size() >= 3; rest = rest.subspan(3)) {
      if (static_cast<uint8_t>(rest[0]) % 4 != message || rest[2] == std::byte{0} || bytes.empty()) continue;
      bytes[static_cast<uint8_t>(rest[1]) % bytes.size()] ^= rest[2];
      changed = true;
    }
    return bytes;
  };
  const auto greeting = carried(connecting.greeting(), 0);
  const auto challenge = carried(hear(accepting, greeting, at_once).send, 1);
  const auto introduction = carried(hear(connecting, challenge, at_once).send, 2);
  const HandshakeStep admitted = hear(accepting, introduction, at_once);
  const auto answer = carried(admitted.send, 3);
  const HandshakeStep last = hear(connecting, answer, at_once);
  const bool fits = zero.rank == said[5] && zero.size == one.size && one.rank == said[2] && one.secret == zero.secret;
  // Two changes of one byte may cancel out.
  const State expected = crosses ? State::crossed : State::done;
  if (!changed) assert((last.state == expected) == fits && (admitted.state == expected) == fits);
  if (admitted.state == State::done) {
    assert(fits && roster.expected.empty() && roster.met.contains(accepting.rank()));
    assert(accepting.port() == one.port && accepting.host() == "there");
  }
  for (const State state : {State::done, State::crossed})
    assert(last.state != state || (fits && admitted.state == state));
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t at_once = data[1] == 0 ? size : data[1];
  const auto words = std::as_bytes(std::span(data, size)).subspan(2);
  const Member self{data[0] % 3 == 0 ? 0 : 1, 2, "secret", "here", 0};
  Roster roster{{1}, {}};
  AcceptingEnd accepting(self, roster, numbered(1));
  ConnectingEnd connecting(self, 0, numbered(2));
  switch (data[0] % 3) {
    case 0:
      // Nothing is accepted without the secret.
      assert(hear(accepting, words, at_once).state != State::done && roster.met.empty());
      break;
    case 1:
      assert(hear(connecting, words, at_once).state != State::done);
      break;
    default:
      hear_each_other(words, at_once);
  }
  return 0;
}

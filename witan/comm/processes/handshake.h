// Authenticates two processes of a job to each other with the first bytes of every connection between them.
//
//   connecting -> accepting   Greeting: magic, version, a random number
//   accepting -> connecting   Greeting
//   connecting -> accepting   Introduction: its rank, the rank it expects, and proof that it knows the job's secret
//   accepting -> connecting   Answer: a verdict, and, if it is `admitted` or `crossed`, the same proof
//
// A proof is HMAC-SHA-256, keyed with the secret, of both greetings, of the side that speaks and of the message: the
// secret does not travel, nothing recorded can be replayed, and no message of one side can be reflected to it. Later
// bytes on the connection are neither encrypted nor authenticated. All messages have a fixed size; numbers are
// little-endian.
//
// Both ends are state machines over bytes, which neither wait nor send: pending_connections.h gives them their
// connections.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "witan/base/hash.h"

namespace witan {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::array<char, 8> kMagic = {'W', 'I', 'T', 'A', 'N', 'R', 'N', 'K'};
inline constexpr uint32_t kProtocol = 7;  // raised when anything that ranks tell each other changes
inline constexpr size_t kHostBytes = 64;  // of a host's name, with what fills it up

struct Greeting {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kProtocol;
  uint32_t unused = 0;
  std::array<uint8_t, 32> nonce{};
};
struct Introduction {
  int32_t rank = 0, size = 0;
  int32_t to = 0;    // the rank that is meant
  int32_t port = 0;  // on which this process accepts connections
  std::array<char, kHostBytes> host{};
  Digest256 proof{};
};
// crossed: the other end is connecting to this one at the same time, and that connection is the one that counts.
enum class Verdict : uint32_t { admitted, another_secret, another_size, another_rank, rank_twice, crossed };
struct Answer {
  Verdict verdict = Verdict::admitted;
  int32_t rank = 0, size = 0;  // of who answers
  uint32_t unused = 0;
  Digest256 proof{};
};
static_assert(sizeof(Greeting) == 48 && sizeof(Introduction) == 112 && sizeof(Answer) == 48);

// A greeting with a new random number.
Greeting fresh_greeting();

// This process within its job.
struct Member {
  int rank = 0, size = 1;
  std::string secret;
  std::string host;
  int port = 0;  // where it accepts connections; 0: nowhere
};

// The ranks that are expected to connect to this process, those that have, and those that it connects to itself and
// thus refuses.
struct Roster {
  std::set<int> expected, met;
  std::set<int> connecting = {};
};

// The next action of an end after it has received bytes.
struct HandshakeStep {
  enum class State : uint8_t { waits, done, refused, crossed };
  State state = State::waits;
  std::vector<std::byte> send = {};  // now, also where it refuses
  std::string why = "";              // it refuses, or leaves it to a connection that crosses this one
};

// Receives a greeting and then a message, byte by byte.
template <class Message>
class TwoMessages {
 public:
  // The buffer for the next bytes; empty once both messages are there, or no more are expected.
  std::span<std::byte> room();
  // Takes bytes that were put into room(). Calls the handler of a message that is now complete. Once a handler no
  // longer waits, no more bytes are taken.
  template <class Greeted, class Completed>
  HandshakeStep advance(size_t bytes, const Greeted& greeted, const Completed& completed);

  const Greeting& greeting() const { return greeting_; }
  const Message& message() const { return message_; }

 private:
  Greeting greeting_;
  Message message_;
  size_t got_ = 0;  // bytes of greeting_, then of message_
  bool over_ = false;
};

// The accepting end. It trusts the bytes of a connected process only once they are proven.
class AcceptingEnd {
 public:
  // Both must outlive it. `mine` is of this connection alone.
  AcceptingEnd(const Member& self, Roster& roster, const Greeting& mine);

  // The buffer for the next bytes; empty once it is done or has refused.
  std::span<std::byte> room() { return received_.room(); }
  HandshakeStep advance(size_t bytes);

  // Once it is done: who has come.
  int rank() const { return received_.message().rank; }
  int port() const { return received_.message().port; }
  std::string host() const;  // printable

 private:
  HandshakeStep read_greeting();
  HandshakeStep read_introduction();
  Verdict verdict() const;

  const Member& self_;
  Roster& roster_;
  const Greeting mine_;
  TwoMessages<Introduction> received_;
};

// The connecting end, which introduces this process to rank `to`.
class ConnectingEnd {
 public:
  // Self must outlive it. `mine`: of this connection alone.
  ConnectingEnd(const Member& self, int to, const Greeting& mine);

  std::span<const std::byte> greeting() const;              // is sent first
  std::span<std::byte> room() { return received_.room(); }  // as above
  HandshakeStep advance(size_t bytes);

 private:
  HandshakeStep read_greeting();
  HandshakeStep read_answer();

  const Member& self_;
  const int to_;
  const Greeting mine_;
  TwoMessages<Answer> received_;
};

}  // namespace witan

// Authenticates two processes of a job to each other with the first bytes of every connection between them.
//
//   connecting -> accepting   Greeting: magic, version, a random number
//   accepting -> connecting   Greeting
//   connecting -> accepting   Introduction: its rank, the rank it expects, and proof that it knows the job's secret
//   accepting -> connecting   Answer: a verdict, and, if it is `admitted`, the same proof
//
// A proof is HMAC-SHA-256, keyed with the secret, of both greetings and of the message: the secret does not travel, and
// nothing recorded can be used again. What follows on the connection is neither encrypted nor proven. All messages have
// a fixed size; numbers are little-endian.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "witan/base/hmac.h"
#include "witan/comm/processes/socket.h"

namespace witan {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::array<char, 8> kMagic = {'W', 'I', 'T', 'A', 'N', 'R', 'N', 'K'};
inline constexpr uint32_t kProtocol = 4;  // raised when anything that ranks tell each other changes
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
  int32_t port = 0;  // where this process hears connections
  std::array<char, kHostBytes> host{};
  Digest256 proof{};
};
enum class Verdict : uint32_t { admitted, another_secret, another_size, another_rank, rank_twice };
struct Answer {
  Verdict verdict = Verdict::admitted;
  int32_t rank = 0, size = 0;  // of who answers
  uint32_t unused = 0;
  Digest256 proof{};
};
static_assert(sizeof(Greeting) == 48 && sizeof(Introduction) == 112 && sizeof(Answer) == 48);

// This process, as it stands in its job.
struct Member {
  int rank = 0, size = 1;
  std::string secret;
  std::string host;
  int port = 0;  // where it hears connections; 0: nowhere
  // The connection to rank 0, once that has met all others. It knows who is lost since: when it ends, nobody else is to
  // be waited for.
  const Socket* first = nullptr;
};

// Who has been met, and the connection.
struct Guest {
  int rank = 0;
  std::string host;  // printable
  int port = 0;
  Socket socket;
};

// Introduces this process to rank `to` on a fresh connection to `at`. Nothing, with the reason in `why`, when the
// connection ends or the deadline passes. Throws CommError when the other one is not of this job.
std::optional<Guest> introduce(Socket socket, const Endpoint& at, const Member& self, int to, Deadline deadline,
                               std::string& why);

// Hears connections until all of `expected` ranks have introduced themselves. Whoever does not speak the protocol, or
// is not of this job, is refused, and held to a few seconds; it disturbs nobody else. Throws CommError after the
// deadline, or once self.first ends, naming the ranks that did not come, and why the last connection was refused.
// `guests`: those who came, also after an error.
void receive_guests(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                    std::vector<Guest>& guests);

}  // namespace witan

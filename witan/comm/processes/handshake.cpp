#include "witan/comm/processes/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <list>
#include <span>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/rank_list.h"

namespace witan {
namespace {

constexpr double kPatienceSeconds = 5;  // with one visitor
constexpr size_t kMostVisitors = 1024;  // at a time
constexpr std::string_view kConnects = "witan: a rank connects", kAccepts = "witan: a rank accepts";

template <class Message>
std::span<const std::byte> bytes_of(const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return std::as_bytes(std::span(&message, 1));
}
template <class Message>
std::span<std::byte> writable_bytes_of(Message& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

Greeting greeting() {
  Greeting mine;
  fill_random(mine.nonce);
  return mine;
}

// Of all of the message that stands before its proof.
template <class Message>
Digest256 proof_of(const std::string& secret, std::string_view role, const Greeting& connecting,
                   const Greeting& accepting, const Message& message) {
  static_assert(offsetof(Message, proof) + sizeof(Digest256) == sizeof(Message));
  std::vector<uint8_t> text(role.begin(), role.end());
  const auto add = [&](std::span<const std::byte> bytes) {
    const auto* from = reinterpret_cast<const uint8_t*>(bytes.data());
    text.insert(text.end(), from, from + bytes.size());
  };
  add(bytes_of(connecting));
  add(bytes_of(accepting));
  add(bytes_of(message).first(offsetof(Message, proof)));
  return hmac_sha256(secret, text);
}

std::string printable(const std::array<char, kHostBytes>& name) {
  std::string text;
  for (const char c : name) {
    if (c == 0) break;
    text += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' ? c : '?';
  }
  return text;
}

std::array<char, kHostBytes> host_field(const std::string& name) {
  std::array<char, kHostBytes> field{};
  std::copy_n(name.begin(), std::min(name.size(), field.size() - 1), field.begin());
  return field;
}

// Why whoever greets so is not of this job; empty: it may be.
std::string stranger(const Greeting& theirs) {
  if (theirs.magic != kMagic) return "it does not speak Witan's protocol";
  if (theirs.version != kProtocol)
    return cat("it speaks version ", theirs.version, " of Witan's protocol, this program version ", kProtocol,
               "; run the same build of witan everywhere");
  return "";
}

std::string refusal(const Answer& answer, const Member& self) {
  switch (answer.verdict) {
    case Verdict::another_secret:
      return "WITAN_JOB_SECRET is another there";
    case Verdict::another_size:
      return cat("it is one of ", answer.size, " ranks, this process one of ", self.size);
    case Verdict::rank_twice:
      return cat("another process has already come as rank ", self.rank);
    default:
      return cat("it is rank ", answer.rank, " and does not expect rank ", self.rank);
  }
}

// A connection of which it is not known yet whose it is.
struct Visitor {
  explicit Visitor(Socket from) : socket(std::move(from)) {}

  Socket socket;
  Deadline until = deadline_in(kPatienceSeconds);
  Greeting mine = greeting();
  Greeting theirs;
  Introduction introduction;
  size_t got = 0;  // bytes of theirs, then of introduction

  std::span<std::byte> missing() {
    if (got < sizeof theirs) return writable_bytes_of(theirs).subspan(got);
    return writable_bytes_of(introduction).subspan(got - sizeof theirs);
  }
  bool complete() const { return got == sizeof theirs + sizeof introduction; }
};

class Reception {
 public:
  Reception(const Socket& listener, const Member& self, std::set<int> expected, std::vector<Guest>& guests)
      : listener_(listener), self_(self), expected_(std::move(expected)), guests_(guests) {}

  void until(Deadline deadline);

 private:
  void wait(Deadline deadline);
  void let_in();
  // Whether the visitor stays.
  bool attend(Visitor& visitor);
  bool judge(Visitor& visitor);
  Verdict verdict(const Visitor& visitor) const;
  bool turn_away(const Visitor& visitor, const std::string& why);
  std::string complaint() const;

  const Socket& listener_;
  const Member& self_;
  std::set<int> expected_, met_;
  std::list<Visitor> visitors_;
  std::vector<Guest>& guests_;
  std::string turned_away_;  // the last one, and why
};

void Reception::until(Deadline deadline) {
  while (!expected_.empty()) {
    require<CommError>(std::chrono::steady_clock::now() < deadline, complaint());
    require<CommError>(self_.first == nullptr || !hung_up(*self_.first), complaint(), "; rank 0 ended meanwhile");
    wait(deadline);
    let_in();
    const auto now = std::chrono::steady_clock::now();
    visitors_.remove_if([&](Visitor& visitor) {
      if (!attend(visitor)) return true;
      return now > visitor.until && !turn_away(visitor, "it said too little for too long");
    });
  }
}

void Reception::wait(Deadline deadline) {
  constexpr int kMostMilliseconds = 200;  // visitors and the deadline are looked at so often
  std::vector<pollfd> fds = {{listener_.fd(), POLLIN, 0}};
  for (const Visitor& visitor : visitors_) fds.push_back({visitor.socket.fd(), POLLIN, 0});
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMostMilliseconds)));
}

void Reception::let_in() {
  while (visitors_.size() < kMostVisitors) {
    auto socket = accept_from(listener_);
    if (!socket) return;
    visitors_.emplace_back(std::move(*socket));
  }
}

bool Reception::attend(Visitor& visitor) {
  for (;;) {
    const auto into = visitor.missing();
    const ssize_t got = ::recv(visitor.socket.fd(), into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return turn_away(visitor, "it went away before it said who it is");
    visitor.got += static_cast<size_t>(got);
    if (visitor.got == sizeof visitor.theirs) {
      // A greeting is answered whatever its version, so that the other side can say what is wrong.
      if (visitor.theirs.magic != kMagic) return turn_away(visitor, stranger(visitor.theirs));
      ::send(visitor.socket.fd(), &visitor.mine, sizeof visitor.mine, MSG_NOSIGNAL);
      if (const auto why = stranger(visitor.theirs); !why.empty()) return turn_away(visitor, why);
    }
    if (visitor.complete()) return judge(visitor);
  }
}

Verdict Reception::verdict(const Visitor& visitor) const {
  const Introduction& said = visitor.introduction;
  const Digest256 proof = proof_of(self_.secret, kConnects, visitor.theirs, visitor.mine, said);
  if (!same_digest(proof, said.proof)) return Verdict::another_secret;
  if (said.size != self_.size) return Verdict::another_size;
  if (said.to != self_.rank) return Verdict::another_rank;
  if (met_.contains(said.rank)) return Verdict::rank_twice;
  return expected_.contains(said.rank) ? Verdict::admitted : Verdict::another_rank;
}

bool Reception::judge(Visitor& visitor) {
  const Introduction& said = visitor.introduction;
  Answer answer{verdict(visitor), self_.rank, self_.size, 0, {}};
  if (answer.verdict == Verdict::admitted)
    answer.proof = proof_of(self_.secret, kAccepts, visitor.theirs, visitor.mine, answer);
  ::send(visitor.socket.fd(), &answer, sizeof answer, MSG_NOSIGNAL);
  switch (answer.verdict) {
    case Verdict::admitted:
      break;
    case Verdict::another_secret:
      return turn_away(visitor, "its WITAN_JOB_SECRET is another");
    case Verdict::another_size:
      return turn_away(visitor, cat("it is one of ", said.size, " ranks, not of ", self_.size));
    case Verdict::rank_twice:
      return turn_away(visitor, cat("it is a second rank ", said.rank));
    case Verdict::another_rank:
      return turn_away(visitor, cat("it says that it is rank ", said.rank, " and wants rank ", said.to));
  }
  expected_.erase(said.rank);
  met_.insert(said.rank);
  guests_.push_back({said.rank, printable(said.host), said.port, std::move(visitor.socket)});
  return false;
}

bool Reception::turn_away(const Visitor& visitor, const std::string& why) {
  try {
    turned_away_ = cat("a visitor from ", remote_end(visitor.socket).address, " was turned away: ", why);
  } catch (const CommError&) {
    turned_away_ = cat("a visitor was turned away: ", why);
  }
  return false;
}

std::string Reception::complaint() const {
  const std::vector<int> missing(expected_.begin(), expected_.end());
  return cat(rank_list(missing), " of ", self_.size, " did not come to rank ", self_.rank, " on ", self_.host,
             turned_away_.empty() ? "" : "; ", turned_away_);
}

}  // namespace

std::optional<Guest> introduce(Socket socket, const Endpoint& at, const Member& self, int to, Deadline deadline,
                               std::string& why) {
  const Greeting mine = greeting();
  Greeting theirs;
  Introduction introduction{self.rank, self.size, to, self.port, host_field(self.host), {}};
  Answer answer;
  const auto ended = [&](Transfer transfer) {
    why = cat("rank ", to, transfer == Transfer::late ? " did not answer" : " ended the connection");
    return transfer != Transfer::done;
  };
  if (ended(send_all(socket, bytes_of(mine), deadline))) return std::nullopt;
  if (ended(recv_all(socket, writable_bytes_of(theirs), deadline, self.first))) return std::nullopt;
  const auto refuse = [&](const std::string& reason) {
    throw CommError(cat("what answers at ", at.address, ":", at.port, " is not rank ", to, " of this job: ", reason));
  };
  if (const auto reason = stranger(theirs); !reason.empty()) refuse(reason);
  introduction.proof = proof_of(self.secret, kConnects, mine, theirs, introduction);
  if (ended(send_all(socket, bytes_of(introduction), deadline))) return std::nullopt;
  if (ended(recv_all(socket, writable_bytes_of(answer), deadline, self.first))) return std::nullopt;
  if (answer.verdict != Verdict::admitted) refuse(refusal(answer, self));
  if (!same_digest(answer.proof, proof_of(self.secret, kAccepts, mine, theirs, answer)))
    refuse("it does not know WITAN_JOB_SECRET");
  return Guest{to, "", at.port, std::move(socket)};
}

void receive_guests(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                    std::vector<Guest>& guests) {
  Reception(listener, self, std::move(expected), guests).until(deadline);
}

}  // namespace witan

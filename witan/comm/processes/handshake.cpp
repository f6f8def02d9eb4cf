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

constexpr double kPatienceSeconds = 5;  // with one connection
constexpr size_t kMostPending = 1024;   // at a time
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
      return "its WITAN_JOB_SECRET differs";
    case Verdict::another_size:
      return cat("its world size is ", answer.size, ", this process's is ", self.size);
    case Verdict::rank_twice:
      return cat("another process has already joined as rank ", self.rank);
    default:
      return cat("it is rank ", answer.rank, " and does not expect rank ", self.rank);
  }
}

// A connection of which it is not known yet whose it is.
struct Pending {
  explicit Pending(Socket from) : socket(std::move(from)) {}

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

class Acceptor {
 public:
  Acceptor(const Socket& listener, const Member& self, std::set<int> expected, std::vector<Guest>& guests)
      : listener_(listener), self_(self), expected_(std::move(expected)), guests_(guests) {}

  void until(Deadline deadline);

 private:
  void wait(Deadline deadline);
  void let_in();
  // Whether the connection stays.
  bool attend(Pending& connection);
  bool judge(Pending& connection);
  Verdict verdict(const Pending& connection) const;
  bool refuse_connection(const Pending& connection, const std::string& why);
  std::string complaint() const;

  const Socket& listener_;
  const Member& self_;
  std::set<int> expected_, met_;
  std::list<Pending> pending_;
  std::vector<Guest>& guests_;
  std::string last_refusal_;  // the last one, and why
};

void Acceptor::until(Deadline deadline) {
  while (!expected_.empty()) {
    require<CommError>(std::chrono::steady_clock::now() < deadline, complaint());
    require<CommError>(self_.first == nullptr || !hung_up(*self_.first), complaint(), "; rank 0 ended meanwhile");
    wait(deadline);
    let_in();
    const auto now = std::chrono::steady_clock::now();
    pending_.remove_if([&](Pending& connection) {
      if (!attend(connection)) return true;
      return now > connection.until && !refuse_connection(connection, "it did not complete the handshake in time");
    });
  }
}

void Acceptor::wait(Deadline deadline) {
  constexpr int kMostMilliseconds = 200;  // connections and the deadline are looked at so often
  std::vector<pollfd> fds = {{listener_.fd(), POLLIN, 0}};
  for (const Pending& connection : pending_) fds.push_back({connection.socket.fd(), POLLIN, 0});
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMostMilliseconds)));
}

void Acceptor::let_in() {
  while (pending_.size() < kMostPending) {
    auto socket = accept_from(listener_);
    if (!socket) return;
    pending_.emplace_back(std::move(*socket));
  }
}

bool Acceptor::attend(Pending& connection) {
  for (;;) {
    const auto into = connection.missing();
    const ssize_t got = ::recv(connection.socket.fd(), into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return refuse_connection(connection, "it disconnected during the handshake");
    connection.got += static_cast<size_t>(got);
    if (connection.got == sizeof connection.theirs) {
      // A greeting is answered whatever its version, so that the other side can say what is wrong.
      if (connection.theirs.magic != kMagic) return refuse_connection(connection, stranger(connection.theirs));
      ::send(connection.socket.fd(), &connection.mine, sizeof connection.mine, MSG_NOSIGNAL);
      if (const auto why = stranger(connection.theirs); !why.empty()) return refuse_connection(connection, why);
    }
    if (connection.complete()) return judge(connection);
  }
}

Verdict Acceptor::verdict(const Pending& connection) const {
  const Introduction& said = connection.introduction;
  const Digest256 proof = proof_of(self_.secret, kConnects, connection.theirs, connection.mine, said);
  if (!same_digest(proof, said.proof)) return Verdict::another_secret;
  if (said.size != self_.size) return Verdict::another_size;
  if (said.to != self_.rank) return Verdict::another_rank;
  if (met_.contains(said.rank)) return Verdict::rank_twice;
  return expected_.contains(said.rank) ? Verdict::admitted : Verdict::another_rank;
}

bool Acceptor::judge(Pending& connection) {
  const Introduction& said = connection.introduction;
  Answer answer{verdict(connection), self_.rank, self_.size, 0, {}};
  if (answer.verdict == Verdict::admitted)
    answer.proof = proof_of(self_.secret, kAccepts, connection.theirs, connection.mine, answer);
  ::send(connection.socket.fd(), &answer, sizeof answer, MSG_NOSIGNAL);
  switch (answer.verdict) {
    case Verdict::admitted:
      break;
    case Verdict::another_secret:
      return refuse_connection(connection, "its WITAN_JOB_SECRET differs");
    case Verdict::another_size:
      return refuse_connection(connection, cat("its world size is ", said.size, ", not ", self_.size));
    case Verdict::rank_twice:
      return refuse_connection(connection, cat("rank ", said.rank, " has joined already"));
    case Verdict::another_rank:
      return refuse_connection(connection, cat("it is rank ", said.rank, " and expects rank ", said.to, " here"));
  }
  expected_.erase(said.rank);
  met_.insert(said.rank);
  guests_.push_back({said.rank, printable(said.host), said.port, std::move(connection.socket)});
  return false;
}

bool Acceptor::refuse_connection(const Pending& connection, const std::string& why) {
  try {
    last_refusal_ = cat("a connection from ", remote_end(connection.socket).address, " was refused: ", why);
  } catch (const CommError&) {
    last_refusal_ = cat("a connection was refused: ", why);
  }
  return false;
}

std::string Acceptor::complaint() const {
  const std::vector<int> missing(expected_.begin(), expected_.end());
  return cat(rank_list(missing), " of ", self_.size, " did not connect to rank ", self_.rank, " on ", self_.host,
             last_refusal_.empty() ? "" : "; ", last_refusal_);
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
    throw CommError(cat("the process at ", at.address, ":", at.port, " is not rank ", to, " of this job: ", reason));
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
  Acceptor(listener, self, std::move(expected), guests).until(deadline);
}

}  // namespace witan

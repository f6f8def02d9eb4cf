#include "witan/comm/processes/pending_connections.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/host_group.h"
#include "witan/comm/processes/process_failure.h"

namespace witan {
namespace {

using State = HandshakeStep::State;

constexpr double kPatienceSeconds = 5;   // with one connection, however it trickles
constexpr double kGreetingSeconds = 10;  // until a process that accepts has greeted
constexpr double kPauseSeconds = 0.1;    // between tries to accept a connection for which there is no descriptor

std::string address_of(const Socket& socket) {
  try {
    return remote_end(socket).address;
  } catch (const CommError&) {  // it is gone already
    return "";
  }
}

constexpr const char* kAnotherUser =
    "it belongs to another user of this machine, and the job has no WITAN_JOB_SECRET by which to know its ranks";

// Without a secret, only the user distinguishes the ranks of a job from other programs of their machine. Throws
// CommError if the user cannot be determined.
bool of_another_user(const Member& self, const Socket& socket) {
  return self.secret.empty() && user_of_peer(socket).value_or(::geteuid()) != ::geteuid();
}

// "rank 3 of 4 did not connect to rank 0 on node1; a connection from 10.0.0.7 was refused: ...".
std::string complaint(const Member& self, const Roster& roster, const PendingConnections& pending) {
  const std::vector<int> missing(roster.expected.begin(), roster.expected.end());
  const std::string& refusal = pending.last_refusal();
  return cat(rank_list(missing), " of ", self.size, " did not connect to rank ", self.rank, " on ", self.host,
             refusal.empty() ? "" : "; ", refusal);
}

// A rank that has come and is gone will not come again, so that waiting for the others is pointless.
void require_present(const std::vector<ConnectedPeer>& peers) {
  for (const ConnectedPeer& peer : peers)
    require<LostError>(!hung_up(peer.socket), "rank ", peer.rank, " on ", peer.host, " is lost: its connection ended");
}

struct DiagRequest {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

// The end of a connection as requests name it. An IPv4 connection to a socket of IPv6 counts as one of IPv4.
void put_end(const sockaddr_storage& from, uint8_t& family, uint32_t* address, uint16_t& port) {
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
  family = static_cast<uint8_t>(from.ss_family);
  port = from.ss_family == AF_INET ? v4.sin_port : v6.sin6_port;
  if (from.ss_family == AF_INET) {
    std::memcpy(address, &v4.sin_addr, sizeof v4.sin_addr);
  } else if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    family = AF_INET;
    std::memcpy(address, v6.sin6_addr.s6_addr + 12, 4);
  } else {
    std::memcpy(address, &v6.sin6_addr, sizeof v6.sin6_addr);
  }
}

// For the socket that is the other end of this one.
std::optional<DiagRequest> request_for_peer(const Socket& socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here), &here_bytes) != 0 ||
      ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there), &there_bytes) != 0)
    return std::nullopt;
  DiagRequest request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~uint32_t{0};
  inet_diag_sockid& id = request.body.id;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  put_end(here, request.body.sdiag_family, id.idiag_dst, id.idiag_dport);
  put_end(there, request.body.sdiag_family, id.idiag_src, id.idiag_sport);
  return request;
}

}  // namespace

// A connection of which it is not known yet whose it is.
struct PendingConnections::Pending {
  Pending(Socket from, const Member& self, Roster& roster)
      : socket(std::move(from)), address(address_of(socket)), end(self, roster, fresh_greeting()) {}

  Socket socket;
  std::string address;
  Deadline until = deadline_in(kPatienceSeconds);
  AcceptingEnd end;
};

PendingConnections::PendingConnections(const Socket& listener, const Member& self, Roster& roster)
    : listener_(listener), self_(self), roster_(roster) {}

PendingConnections::~PendingConnections() = default;

size_t PendingConnections::most_pending() const {
  return roster_.expected.size() + kMostStrangers;
}

double PendingConnections::seconds_to_next_try() const {
  return next_try_ ? -seconds_since(*next_try_) : std::numeric_limits<double>::infinity();
}

// A listener whose connections cannot be accepted stays readable, and poll() would return at once.
void PendingConnections::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({next_try_ ? -1 : listener_.fd(), POLLIN, 0});
  for (const Pending& connection : pending_) fds.push_back({connection.socket.fd(), POLLIN, 0});
}

std::vector<ConnectedPeer> PendingConnections::attend(std::span<const pollfd> polled) {
  std::vector<ConnectedPeer> peers;
  size_t next = 0;  // the listener's; those of the pending follow in their order
  pending_.remove_if([&](Pending& connection) {
    return ++next < polled.size() && polled[next].revents != 0 && !attend(connection, peers);
  });
  let_in(peers);
  pending_.remove_if([&, now = std::chrono::steady_clock::now()](const Pending& connection) {
    return now > connection.until && !refuse_connection(connection, "it did not complete the handshake in time");
  });
  return peers;
}

// Accepts as many at a time as there is room for, and serves the pending ones in between.
void PendingConnections::let_in(std::vector<ConnectedPeer>& peers) {
  if (next_try_ && seconds_to_next_try() > 0) return;
  next_try_.reset();
  const size_t most = most_pending();
  for (size_t come = 0; come < most; ++come) {
    auto socket = accept();
    if (!socket) return;
    if (pending_.size() >= most) make_room();
    bool foreign = false;
    try {
      foreign = of_another_user(self_, *socket);
    } catch (const CommError& error) {  // a rank whose connection is closed tries again
      last_refusal_ = error.what();
      next_try_ = deadline_in(kPauseSeconds);
      return;
    }
    pending_.emplace_back(std::move(*socket), self_, roster_);
    const bool may_stay = foreign ? refuse_connection(pending_.back(), kAnotherUser) : attend(pending_.back(), peers);
    if (!may_stay) pending_.pop_back();
  }
}

std::optional<Socket> PendingConnections::accept() {
  auto socket = accept_from(listener_);
  if (!socket && lacks_descriptors(errno) && !pending_.empty()) {
    make_room();
    socket = accept_from(listener_);
  }
  if (!socket && lacks_descriptors(errno)) {
    last_refusal_ = cat("a connection could not be accepted: ", std::strerror(errno));
    next_try_ = deadline_in(kPauseSeconds);
  }
  return socket;
}

void PendingConnections::make_room() {
  std::map<std::string_view, int> of_address;
  for (const Pending& connection : pending_) ++of_address[connection.address];
  const auto crowd = std::ranges::max_element(of_address, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find(pending_, crowd->first, &Pending::address);
  refuse_connection(*oldest, "too many others connected from there");
  pending_.erase(oldest);
}

bool PendingConnections::attend(Pending& connection, std::vector<ConnectedPeer>& peers) {
  for (;;) {
    const auto into = connection.end.room();
    const ssize_t got = ::recv(connection.socket.fd(), into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return refuse_connection(connection, "it disconnected during the handshake");
    const HandshakeStep step = connection.end.advance(static_cast<size_t>(got));
    // Messages before the proof fit into any socket's buffer.
    if (!step.send.empty()) ::send(connection.socket.fd(), step.send.data(), step.send.size(), MSG_NOSIGNAL);
    if (step.state == State::waits) continue;
    if (step.state != State::done) return refuse_connection(connection, step.why);
    const AcceptingEnd& end = connection.end;
    peers.push_back({end.rank(), end.host(), end.port(), std::move(connection.socket)});
    return false;
  }
}

bool PendingConnections::refuse_connection(const Pending& connection, const std::string& why) {
  last_refusal_ =
      cat("a connection ", connection.address.empty() ? "" : "from " + connection.address + " ", "was refused: ", why);
  return false;
}

std::optional<ConnectedPeer> introduce(Socket socket, const Endpoint& at, const Member& self, int to, Deadline deadline,
                                       std::string& why, const Socket* lifeline) {
  const auto failed = [&](Transfer transfer) {
    why = cat("rank ", to, transfer == Transfer::late ? " did not answer" : " ended the connection");
    return transfer != Transfer::done;
  };
  ConnectingEnd end(self, to, fresh_greeting());
  if (failed(send_all(socket, end.greeting(), deadline))) return std::nullopt;
  // A connection may be lost where it waits to be accepted; one that has introduced itself may have been admitted.
  Deadline patience = std::min(deadline, deadline_in(kGreetingSeconds));
  for (;;) {
    const auto room = end.room();
    if (failed(recv_all(socket, room, patience, lifeline))) return std::nullopt;
    HandshakeStep step = end.advance(room.size());
    // A process that has answered has accepted the connection, so that the socket belongs to its user.
    try {
      if (of_another_user(self, socket)) step = {State::refused, {}, kAnotherUser};
    } catch (const CommError& error) {
      why = error.what();
      return std::nullopt;
    }
    require<CommError>(step.state != State::refused, "the process at ", at.address, ":", at.port, " is not rank ", to,
                       " of this job: ", step.why);
    if (step.state == State::done) return ConnectedPeer{to, "", at.port, std::move(socket)};
    if (step.state == State::crossed) {
      why = step.why;
      return std::nullopt;
    }
    patience = deadline;
    if (failed(send_all(socket, step.send, deadline))) return std::nullopt;
  }
}

void accept_peers(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                  std::vector<ConnectedPeer>& peers) {
  constexpr int kMostMilliseconds = 200;  // connections and the deadline are looked at so often
  constexpr double kLookSeconds = 0.2;
  Roster roster{std::move(expected), {}};
  PendingConnections pending(listener, self, roster);
  for (Deadline next_look{}; !roster.expected.empty();) {
    require<CommError>(std::chrono::steady_clock::now() < deadline, complaint(self, roster, pending));
    std::vector<pollfd> fds;
    pending.add_to(fds);
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMostMilliseconds)));
    for (ConnectedPeer& peer : pending.attend(fds)) peers.push_back(std::move(peer));
    if (roster.expected.empty() || seconds_since(next_look) < 0) continue;
    next_look = deadline_in(kLookSeconds);
    require_present(peers);
  }
}

std::optional<uid_t> user_of_peer(const Socket& socket) {
  const auto request = request_for_peer(socket);
  const Socket kernel(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  const auto require_room = [] {
    require<CommError>(!lacks_descriptors(errno), "cannot ask whose a connection is: ", std::strerror(errno));
  };
  if (!kernel.open()) require_room();
  if (!request || !kernel.open()) return std::nullopt;
  if (::send(kernel.fd(), &*request, sizeof *request, 0) != static_cast<ssize_t>(sizeof *request)) {
    require_room();
    return std::nullopt;
  }
  alignas(nlmsghdr) std::array<char, 4096> answer;
  const ssize_t got = ::recv(kernel.fd(), answer.data(), answer.size(), 0);  // the kernel answers before it returns
  if (got < 0) require_room();
  nlmsghdr head;
  inet_diag_msg body;
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof body))) return std::nullopt;
  std::memcpy(&head, answer.data(), sizeof head);
  if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  std::memcpy(&body, answer.data() + NLMSG_HDRLEN, sizeof body);
  return body.idiag_uid;
}

}  // namespace witan

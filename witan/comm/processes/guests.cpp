#include "witan/comm/processes/guests.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/processes/peer_user.h"
#include "witan/comm/processes/process_failure.h"
#include "witan/comm/rank_list.h"

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

// Without a secret, all that tells the ranks of a job from other programs of their machine. Throws CommError where it
// cannot be known.
bool of_another_user(const Member& self, const Socket& socket) {
  return self.secret.empty() && user_of_peer(socket).value_or(::geteuid()) != ::geteuid();
}

// "rank 3 of 4 did not connect to rank 0 on node1; a connection from 10.0.0.7 was refused: ...".
std::string complaint(const Member& self, const Roster& roster, const Reception& reception) {
  const std::vector<int> missing(roster.expected.begin(), roster.expected.end());
  const std::string& refusal = reception.last_refusal();
  return cat(rank_list(missing), " of ", self.size, " did not connect to rank ", self.rank, " on ", self.host,
             refusal.empty() ? "" : "; ", refusal);
}

// Whoever has come and is gone will not come again: nobody else need be waited for.
void require_present(const std::vector<Guest>& guests) {
  for (const Guest& guest : guests)
    require<LostError>(!hung_up(guest.socket), "rank ", guest.rank, " on ", guest.host,
                       " is lost: its connection ended");
}

}  // namespace

// A connection of which it is not known yet whose it is.
struct Reception::Pending {
  Pending(Socket from, const Member& self, Roster& roster)
      : socket(std::move(from)), address(address_of(socket)), end(self, roster, fresh_greeting()) {}

  Socket socket;
  std::string address;
  Deadline until = deadline_in(kPatienceSeconds);
  AcceptingEnd end;
};

Reception::Reception(const Socket& listener, const Member& self, Roster& roster)
    : listener_(listener), self_(self), roster_(roster) {}

Reception::~Reception() = default;

size_t Reception::most_pending() const {
  return roster_.expected.size() + kMostStrangers;
}

double Reception::seconds_to_next_try() const {
  return next_try_ ? -seconds_since(*next_try_) : std::numeric_limits<double>::infinity();
}

// A listener whose connections cannot be accepted stays readable, and poll() would return at once.
void Reception::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({next_try_ ? -1 : listener_.fd(), POLLIN, 0});
  for (const Pending& connection : pending_) fds.push_back({connection.socket.fd(), POLLIN, 0});
}

std::vector<Guest> Reception::attend(std::span<const pollfd> polled) {
  std::vector<Guest> guests;
  size_t next = 0;  // the listener's; those of the pending follow in their order
  pending_.remove_if([&](Pending& connection) {
    return ++next < polled.size() && polled[next].revents != 0 && !attend(connection, guests);
  });
  let_in(guests);
  pending_.remove_if([&, now = std::chrono::steady_clock::now()](const Pending& connection) {
    return now > connection.until && !refuse_connection(connection, "it did not complete the handshake in time");
  });
  return guests;
}

// As many at a time as there is room for, so that those who are there are heard in between.
void Reception::let_in(std::vector<Guest>& guests) {
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
    const bool may_stay = foreign ? refuse_connection(pending_.back(), kAnotherUser) : attend(pending_.back(), guests);
    if (!may_stay) pending_.pop_back();
  }
}

std::optional<Socket> Reception::accept() {
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

void Reception::make_room() {
  std::map<std::string_view, int> of_address;
  for (const Pending& connection : pending_) ++of_address[connection.address];
  const auto crowd = std::ranges::max_element(of_address, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find(pending_, crowd->first, &Pending::address);
  refuse_connection(*oldest, "too many others connected from there");
  pending_.erase(oldest);
}

bool Reception::attend(Pending& connection, std::vector<Guest>& guests) {
  for (;;) {
    const auto into = connection.end.room();
    const ssize_t got = ::recv(connection.socket.fd(), into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return refuse_connection(connection, "it disconnected during the handshake");
    const HandshakeStep step = connection.end.advance(static_cast<size_t>(got));
    // What a connection is sent before it is proven fits into any socket's memory.
    if (!step.send.empty()) ::send(connection.socket.fd(), step.send.data(), step.send.size(), MSG_NOSIGNAL);
    if (step.state == State::waits) continue;
    if (step.state != State::done) return refuse_connection(connection, step.why);
    const AcceptingEnd& end = connection.end;
    guests.push_back({end.rank(), end.host(), end.port(), std::move(connection.socket)});
    return false;
  }
}

bool Reception::refuse_connection(const Pending& connection, const std::string& why) {
  last_refusal_ =
      cat("a connection ", connection.address.empty() ? "" : "from " + connection.address + " ", "was refused: ", why);
  return false;
}

std::optional<Guest> introduce(Socket socket, const Endpoint& at, const Member& self, int to, Deadline deadline,
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
    // Whoever has answered has accepted, which makes the socket its own.
    try {
      if (of_another_user(self, socket)) step = {State::refused, {}, kAnotherUser};
    } catch (const CommError& error) {
      why = error.what();
      return std::nullopt;
    }
    require<CommError>(step.state != State::refused, "the process at ", at.address, ":", at.port, " is not rank ", to,
                       " of this job: ", step.why);
    if (step.state == State::done) return Guest{to, "", at.port, std::move(socket)};
    if (step.state == State::crossed) {
      why = step.why;
      return std::nullopt;
    }
    patience = deadline;
    if (failed(send_all(socket, step.send, deadline))) return std::nullopt;
  }
}

void receive_guests(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                    std::vector<Guest>& guests) {
  constexpr int kMostMilliseconds = 200;  // connections and the deadline are looked at so often
  constexpr double kLookSeconds = 0.2;
  Roster roster{std::move(expected), {}};
  Reception reception(listener, self, roster);
  for (Deadline next_look{}; !roster.expected.empty();) {
    require<CommError>(std::chrono::steady_clock::now() < deadline, complaint(self, roster, reception));
    std::vector<pollfd> fds;
    reception.add_to(fds);
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMostMilliseconds)));
    for (Guest& guest : reception.attend(fds)) guests.push_back(std::move(guest));
    if (roster.expected.empty() || seconds_since(next_look) < 0) continue;
    next_look = deadline_in(kLookSeconds);
    require_present(guests);
  }
}

}  // namespace witan

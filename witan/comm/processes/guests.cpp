#include "witan/comm/processes/guests.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
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

std::string address_of(const Socket& socket) {
  try {
    return remote_end(socket).address;
  } catch (const CommError&) {  // it is gone already
    return "";
  }
}

constexpr const char* kAnotherUser =
    "it belongs to another user of this machine, and the job has no WITAN_JOB_SECRET by which to know its ranks";

// Without a secret, all that tells the ranks of a job from other programs of their machine.
bool of_another_user(const Member& self, const Socket& socket) {
  return self.secret.empty() && user_of_peer(socket).value_or(::geteuid()) != ::geteuid();
}

// A connection of which it is not known yet whose it is.
struct Pending {
  Pending(Socket from, const Member& self, Roster& roster)
      : socket(std::move(from)), address(address_of(socket)), end(self, roster, fresh_greeting()) {}

  Socket socket;
  std::string address;
  Deadline until = deadline_in(kPatienceSeconds);
  AcceptingEnd end;
};

class Acceptor {
 public:
  Acceptor(const Socket& listener, const Member& self, std::set<int> expected, const Socket* lifeline,
           std::vector<Guest>& guests)
      : listener_(listener),
        self_(self),
        most_pending_(expected.size() + kMostStrangers),
        roster_{std::move(expected), {}},
        lifeline_(lifeline),
        guests_(guests) {}

  void until(Deadline deadline);

 private:
  void hear_until(Deadline deadline);
  void let_in();
  void look_after_guests();
  void make_room();
  // Whether the connection stays.
  bool attend(Pending& connection);
  bool refuse_connection(const Pending& connection, const std::string& why);
  std::string complaint() const;

  const Socket& listener_;
  const Member& self_;
  const size_t most_pending_;
  Roster roster_;
  const Socket* lifeline_;
  std::list<Pending> pending_;  // the oldest first
  Deadline next_look_{};
  std::vector<Guest>& guests_;
  std::string last_refusal_;  // the last one, and why
};

void Acceptor::until(Deadline deadline) {
  while (!roster_.expected.empty()) {
    require<CommError>(std::chrono::steady_clock::now() < deadline, complaint());
    require<CommError>(lifeline_ == nullptr || !hung_up(*lifeline_), complaint(), "; rank 0 ended meanwhile");
    hear_until(deadline);
    let_in();
    if (lifeline_ == nullptr && !roster_.expected.empty()) look_after_guests();
    pending_.remove_if([&, now = std::chrono::steady_clock::now()](const Pending& connection) {
      return now > connection.until && !refuse_connection(connection, "it did not complete the handshake in time");
    });
  }
}

// Whoever has come and is gone will not come again: nobody else need be waited for.
void Acceptor::look_after_guests() {
  constexpr double kLookSeconds = 0.2;
  if (seconds_since(next_look_) < 0) return;
  next_look_ = deadline_in(kLookSeconds);
  for (const Guest& guest : guests_)
    require<LostError>(!hung_up(guest.socket), "rank ", guest.rank, " on ", guest.host,
                       " is lost: its connection ended");
}

// Waits until somebody says something or connects, or for a moment.
void Acceptor::hear_until(Deadline deadline) {
  constexpr int kMostMilliseconds = 200;  // connections and the deadline are looked at so often
  std::vector<pollfd> fds = {{listener_.fd(), POLLIN, 0}};
  for (const Pending& connection : pending_) fds.push_back({connection.socket.fd(), POLLIN, 0});
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMostMilliseconds)));
  auto next = fds.begin();  // the listener's; those of the pending follow in their order
  pending_.remove_if([&](Pending& connection) { return (++next)->revents != 0 && !attend(connection); });
}

// As many at a time as there is room for, so that those who are there are heard in between.
void Acceptor::let_in() {
  for (size_t come = 0; come < most_pending_; ++come) {
    auto socket = accept_from(listener_);
    if (!socket && (errno == EMFILE || errno == ENFILE) && !pending_.empty()) {
      make_room();
      socket = accept_from(listener_);
    }
    if (!socket) return;
    if (pending_.size() >= most_pending_) make_room();
    pending_.emplace_back(std::move(*socket), self_, roster_);
    const bool may_stay = !of_another_user(self_, pending_.back().socket)
                              ? attend(pending_.back())
                              : refuse_connection(pending_.back(), kAnotherUser);
    if (!may_stay) pending_.pop_back();
  }
}

void Acceptor::make_room() {
  std::map<std::string_view, int> of_address;
  for (const Pending& connection : pending_) ++of_address[connection.address];
  const auto crowd = std::ranges::max_element(of_address, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find(pending_, crowd->first, &Pending::address);
  refuse_connection(*oldest, "too many others connected from there");
  pending_.erase(oldest);
}

bool Acceptor::attend(Pending& connection) {
  for (;;) {
    const auto into = connection.end.room();
    const ssize_t got = ::recv(connection.socket.fd(), into.data(), into.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return refuse_connection(connection, "it disconnected during the handshake");
    const HandshakeStep step = connection.end.advance(static_cast<size_t>(got));
    // What a connection is sent before it is proven fits into any socket's memory.
    if (!step.send.empty()) ::send(connection.socket.fd(), step.send.data(), step.send.size(), MSG_NOSIGNAL);
    if (step.state == State::refused) return refuse_connection(connection, step.why);
    if (step.state == State::waits) continue;
    const AcceptingEnd& end = connection.end;
    guests_.push_back({end.rank(), end.host(), end.port(), std::move(connection.socket)});
    return false;
  }
}

bool Acceptor::refuse_connection(const Pending& connection, const std::string& why) {
  last_refusal_ =
      cat("a connection ", connection.address.empty() ? "" : "from " + connection.address + " ", "was refused: ", why);
  return false;
}

std::string Acceptor::complaint() const {
  const std::vector<int> missing(roster_.expected.begin(), roster_.expected.end());
  return cat(rank_list(missing), " of ", self_.size, " did not connect to rank ", self_.rank, " on ", self_.host,
             last_refusal_.empty() ? "" : "; ", last_refusal_);
}

}  // namespace

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
    if (of_another_user(self, socket)) step = {State::refused, {}, kAnotherUser};
    require<CommError>(step.state != State::refused, "the process at ", at.address, ":", at.port, " is not rank ", to,
                       " of this job: ", step.why);
    if (step.state == State::done) return Guest{to, "", at.port, std::move(socket)};
    patience = deadline;
    if (failed(send_all(socket, step.send, deadline))) return std::nullopt;
  }
}

void receive_guests(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                    std::vector<Guest>& guests, const Socket* lifeline) {
  Acceptor(listener, self, std::move(expected), lifeline, guests).until(deadline);
}

}  // namespace witan

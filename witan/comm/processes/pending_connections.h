// Shakes hands (handshake.h) over connections: with one process that this one connects to, or with those that connect
// to it.
//
// Whoever else connects is held to a few seconds and refused. As many strangers as like may come, and say nothing or
// little: so many at most are heard at a time, and the next one takes the place of the one that has waited longest,
// among those of the address that has most. Ranks need a few round trips, and try again where they lose their place.
// Where the process has no file descriptor for a connection, it waits in the listener's queue.
//
// A job without a secret is one of a single machine, where every program can prove that it knows none: ends that belong
// to another user are refused, where the kernel tells.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "witan/comm/processes/handshake.h"
#include "witan/comm/processes/socket.h"

namespace witan {

inline constexpr int kMostStrangers = 256;  // heard at a time, beyond the ranks that are expected; a descriptor each

// Who has been met, and the connection.
struct ConnectedPeer {
  int rank = 0;
  std::string host;  // printable
  int port = 0;
  Socket socket;
};

// Introduces this process to rank `to` on a fresh connection to `at`. Nothing, with the reason in `why`, when the
// connection ends, nobody answers for some seconds or the deadline passes, or `lifeline` ends, another connection; or
// when that rank is connecting to this one at the same time. Throws CommError when the other one is not of this job.
std::optional<ConnectedPeer> introduce(Socket socket, const Endpoint& at, const Member& self, int to, Deadline deadline,
                                       std::string& why, const Socket* lifeline = nullptr);

// Hears the connections that come to a listener, as long as it lives: a step at a time, none of which waits.
class PendingConnections {
 public:
  // All of which must outlive it.
  PendingConnections(const Socket& listener, const Member& self, Roster& roster);
  ~PendingConnections();
  PendingConnections(const PendingConnections&) = delete;
  PendingConnections& operator=(const PendingConnections&) = delete;

  // Appends what is to be polled.
  void add_to(std::vector<pollfd>& fds) const;
  // Seconds after which attend() is to be called though nothing has come; infinite but where a connection could not be
  // accepted.
  double seconds_to_next_try() const;
  // Reads what has come, and lets others in. `polled`: what add_to() appended, behind poll(). Returns those who
  // have introduced themselves.
  std::vector<ConnectedPeer> attend(std::span<const pollfd> polled);
  // The last connection that was refused or could not be accepted, and why; empty: there was none.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Pending;
  void let_in(std::vector<ConnectedPeer>& peers);
  std::optional<Socket> accept();
  void make_room();
  // Whether the connection stays.
  bool attend(Pending& connection, std::vector<ConnectedPeer>& peers);
  bool refuse_connection(const Pending& connection, const std::string& why);
  size_t most_pending() const;

  const Socket& listener_;
  const Member& self_;
  Roster& roster_;
  std::list<Pending> pending_;        // the oldest first
  std::optional<Deadline> next_try_;  // to accept a connection, for which there was no descriptor
  std::string last_refusal_;
};

// Hears connections until all of `expected` ranks have introduced themselves. Throws CommError after the deadline, and
// names the ranks that did not come, and why the last connection was refused; LostError once one that has come is gone.
// `peers`: those who came, also after an error.
void accept_peers(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                  std::vector<ConnectedPeer>& peers);

// The user that the other end's socket belongs to, as the kernel's socket monitoring says (sock_diag(7)). Nothing where
// the other end is on another machine or gone, or the kernel does not say. What has connected may be asked at once; who
// accepts is known once it has accepted. Throws CommError where there is no file descriptor to ask the kernel by.
std::optional<uid_t> user_of_peer(const Socket& socket);

}  // namespace witan

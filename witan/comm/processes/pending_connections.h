// Connections during the handshake (handshake.h): to one process that this one connects to, and from processes that
// connect to it.
//
// Connections from strangers are refused within a few seconds. Any number of strangers may connect and send little or
// nothing: only a limited number is pending at a time, and a new one replaces the one that has waited longest among
// those of the address with the most. Ranks need a few round trips, and try again if they lose their place. If the
// process has no free file descriptor, a connection waits in the listener's queue.
//
// A job without a secret runs on a single machine, where every program can prove that it knows no secret. There,
// sockets that belong to another user are refused, if the kernel reports the user.
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

inline constexpr int kMostStrangers = 256;  // pending at a time, besides the expected ranks; a descriptor each

// A rank that has introduced itself, and the connection to it.
struct ConnectedPeer {
  int rank = 0;
  std::string host;  // printable
  int port = 0;
  Socket socket;
};

// Introduces this process to rank `to` on a new connection to `at`. Nothing, with the reason in `why`, if the
// connection ends, nobody answers for some seconds, the deadline passes, `lifeline` (another connection) ends, or that
// rank is connecting to this one at the same time. Throws CommError if the other process is not of this job.
std::optional<ConnectedPeer> introduce(Socket socket, const Endpoint& at, const Member& self, int to, Deadline deadline,
                                       std::string& why, const Socket* lifeline = nullptr);

// Accepts connections of a listener and shakes hands with them, in steps that never wait.
class PendingConnections {
 public:
  // All arguments must outlive it.
  PendingConnections(const Socket& listener, const Member& self, Roster& roster);
  ~PendingConnections();
  PendingConnections(const PendingConnections&) = delete;
  PendingConnections& operator=(const PendingConnections&) = delete;

  // Appends the descriptors to poll.
  void add_to(std::vector<pollfd>& fds) const;
  // Seconds after which attend() must be called even if nothing has arrived; infinite unless a connection could not be
  // accepted.
  double seconds_to_next_try() const;
  // Reads what has arrived and accepts new connections. `polled`: what add_to() appended, after poll(). Returns the
  // ranks that have introduced themselves.
  std::vector<ConnectedPeer> attend(std::span<const pollfd> polled);
  // The last connection that was refused or could not be accepted, and why; empty: none.
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

// Accepts connections until all `expected` ranks have introduced themselves. Throws CommError after the deadline,
// naming the missing ranks and why the last connection was refused; LostError if a rank that has come is gone. `peers`
// receives the ranks that came, also after an error.
void accept_peers(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                  std::vector<ConnectedPeer>& peers);

// The user that the other end's socket belongs to, according to the kernel's socket monitoring (sock_diag(7)). Nothing
// if the other end is on another machine or gone, or the kernel does not report it. The user of a connecting end is
// known at once, that of an accepting end only after it has accepted. Throws CommError if there is no free file
// descriptor.
std::optional<uid_t> user_of_peer(const Socket& socket);

}  // namespace witan

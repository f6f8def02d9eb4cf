// Shakes hands (handshake.h) over connections: with one process that this one connects to, or with all that are to
// connect to it.
//
// Whoever else connects is held to a few seconds and refused. As many strangers as like may come, and say nothing or
// little: so many at most are heard at a time, and the next one takes the place of the one that has waited longest,
// among those of the address that has most. Ranks need a few round trips, and try again where they lose their place.
//
// A job without a secret is one of a single machine, where every program can prove that it knows none: ends that belong
// to another user are refused, where the kernel tells.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "witan/comm/processes/handshake.h"
#include "witan/comm/processes/socket.h"

namespace witan {

inline constexpr int kMostStrangers = 256;  // heard at a time, beyond the ranks that are expected; a descriptor each

// Who has been met, and the connection.
struct Guest {
  int rank = 0;
  std::string host;  // printable
  int port = 0;
  Socket socket;
};

// Introduces this process to rank `to` on a fresh connection to `at`. Nothing, with the reason in `why`, when the
// connection ends, nobody answers for some seconds or the deadline passes, or `lifeline` ends, another connection.
// Throws CommError when the other one is not of this job.
std::optional<Guest> introduce(Socket socket, const Endpoint& at, const Member& self, int to, Deadline deadline,
                               std::string& why, const Socket* lifeline = nullptr);

// Hears connections until all of `expected` ranks have introduced themselves. Throws CommError after the deadline, or
// once `lifeline` ends, the connection to rank 0, which knows who is lost; it names the ranks that did not come, and
// why the last connection was refused. `guests`: those who came, also after an error.
void receive_guests(const Socket& listener, const Member& self, std::set<int> expected, Deadline deadline,
                    std::vector<Guest>& guests, const Socket* lifeline = nullptr);

}  // namespace witan

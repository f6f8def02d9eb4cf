// How a rank of links.h connects to another one, and lets others connect.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/comm/processes/links.h"

namespace witan {
namespace {

constexpr double kTrySeconds = 2;                         // for a host that does not answer
constexpr double kLeastPause = 0.002, kMostPause = 0.25;  // s, between tries

}  // namespace

void Links::attach(int rank, Socket socket) {
  keep_alive(socket);
  if (hold_ && hold_->may_hold(rank)) wait_for_reader(socket);
  Link& to = link(rank);
  to.socket = std::move(socket);
  incoming(rank).heard = deadline_in(0);
  incoming(rank).shut_down = false;  // overrides rank 0's report: the rank itself reports it after all of its data
  roster_.expected.erase(rank);
  roster_.connecting.erase(rank);
  roster_.met.insert(rank);
  to.connected.store(true);
  wake_sleeper();
  wake_reader();
}

// A rank that tries to connect to a leaving rank learns from rank 0 that it has left.
void Links::let_in(std::span<const pollfd> polled) {
  const MutexLock lock(mutex_);
  if (closing_) {
    pending_connections_.reset();
    listener_.close();
  }
  if (!pending_connections_) return;
  for (ConnectedPeer& peer : pending_connections_->attend(polled)) attach(peer.rank, std::move(peer.socket));
}

bool Links::may_reach(int rank) const {
  return !recorded_ && !incoming(rank).shut_down && !connected(rank);
}

// Tries once. False with the reason in `why` if the failure is permanent; other failures are not reported.
bool Links::connect_once(int rank, Deadline until, std::string& why) {
  Link& to = link(rank);
  auto socket = connect_to(to.at, std::min(until, deadline_in(kTrySeconds)), why);
  if (!socket) return true;
  try {
    auto peer = introduce(std::move(*socket), to.at, self_, rank, until, why, &no_failure_);
    const MutexLock lock(mutex_);
    if (peer && !connected(rank)) attach(rank, std::move(peer->socket));
    return true;
  } catch (const CommError& error) {
    // It may be that rank's own connection which made this one superfluous.
    why = error.what();
    return connected(rank);
  }
}

bool Links::reach(int rank, double seconds) {
  Link& to = link(rank);
  if (to.connected.load()) return true;
  const TimedMutexLock alone(to.connecting);
  {
    const MutexLock lock(mutex_);
    if (!may_reach(rank)) return connected(rank);
    if (rank < this->rank()) roster_.connecting.insert(rank);
  }
  PatientDeadline deadline(seconds, hold_.get());
  std::string why = "it did not answer";
  bool retries = true;
  for (double pause = kLeastPause; retries; pause = std::min(2 * pause, kMostPause)) {
    const bool fits = connect_once(rank, deadline_in(seconds), why);
    MutexLock lock(mutex_);
    retries = fits && may_reach(rank) && !deadline.expired(seconds);  // a try may have taken as long
    for (const Deadline next = deadline_in(pause); retries && seconds_since(next) < 0; retries = may_reach(rank))
      changed_.wait_until(lock, next);
  }
  {
    const MutexLock lock(mutex_);
    roster_.connecting.erase(rank);
    if (!may_reach(rank)) return connected(rank);
  }
  const ProcessFailure failure = fail({ProcessFailure::Kind::lost, rank,
                                       cat("rank ", this->rank(), " on ", self_.host, " could not connect to it at ",
                                           to.at.address, ":", to.at.port, ": ", why)});
  throw_failure(failure, host(failure.rank));
}

}  // namespace witan

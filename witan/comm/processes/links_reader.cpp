// The thread of links.h that reads what other ranks send.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "witan/base/error.h"
#include "witan/comm/processes/links.h"

namespace witan {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 18;  // bytes read while others wait for the mutex

}  // namespace

void Links::read_all() {
  Deadline next_heartbeat = deadline_in(0);
  for (;;) {
    std::vector<pollfd> fds = {{wake_.fd(), POLLIN, 0}};
    {
      const MutexLock lock(mutex_);
      for (int rank = 0; rank < size(); ++rank)
        fds.push_back({incoming(rank).ended ? -1 : link(rank).socket.fd(), POLLIN, 0});
    }
    const double until_heartbeat = -seconds_since(next_heartbeat);
    ::poll(fds.data(), fds.size(), std::max(static_cast<int>(std::ceil(until_heartbeat * 1e3)), 0));
    if (fds[0].revents != 0) return;
    for (int rank = 0; rank < size(); ++rank)
      if (fds[static_cast<size_t>(rank) + 1].revents != 0) read_from(rank);
    if (seconds_since(next_heartbeat) >= 0) {
      send_heartbeats();
      notice_silence(next_heartbeat);
      next_heartbeat = deadline_in(heartbeat_seconds_);
    }
    std::optional<ProcessFailure> untold;
    bool raised = false;
    {
      const MutexLock lock(mutex_);
      untold = std::exchange(untold_, std::nullopt);
      raised = recorded_.has_value();
    }
    if (untold) tell(*untold);
    if (raised) failure_->raise();
  }
}

void Links::send_heartbeats() {
  const bool held = hold_ && hold_->held_here();
  for (const auto& one : links_) {
    if (!one->socket.open() || !one->sending.try_lock()) continue;
    const TimedMutexLock sending(one->sending, std::adopt_lock);
    // What is still on its way says the same, and behind it there may be no room for a whole frame.
    int unsent = 0;
    if (::ioctl(one->socket.fd(), SIOCOUTQ, &unsent) != 0 || unsent > 0) continue;
    send_frame(*one, {kHeartbeat, 0, held ? kHeld : 0, 0}, {}, {0, nullptr}, /*last_words=*/true);
  }
}

void Links::notice_silence(Deadline due) {
  const MutexLock lock(mutex_);
  // It is this process that was stopped, perhaps with all others: they are heard from now on.
  if (seconds_since(due) > kMissedHeartbeats * heartbeat_seconds_)
    for (Incoming& one : incoming_) one.heard = deadline_in(0);
  for (int rank = 0; hold_ && rank < size(); ++rank) {
    const Incoming& one = incoming(rank);
    const bool gone = one.ended || one.shut_down;
    // A process that is stopped cannot say any more that it is.
    if (gone || seconds_since(one.heard) > kMissedHeartbeats * heartbeat_seconds_) hold_->hear(rank, !gone);
  }
  const auto silent = silence();
  if (silent && seconds_since(incoming(silent->rank).heard) > silence_seconds_) lose(silent->rank, silent->text);
}

void Links::read_from(int rank) {
  constexpr int kMostTimes = 16;  // then it is the others' turn
  for (int i = 0; i < kMostTimes; ++i) {
    const MutexLock lock(mutex_);
    if (!read_some(rank)) return;
  }
}

bool Links::read_some(int rank) {
  Incoming& from = incoming(rank);
  if (from.ended) return false;
  const auto room = from.inbox.room(trash_);
  const ssize_t got = ::recv(link(rank).socket.fd(), room.data(), std::min(room.size(), kMostAtOnce), 0);
  if (got > 0) {
    from.heard = deadline_in(0);
    const auto event = from.inbox.advance(static_cast<size_t>(got), dropped_);
    if (event == Inbox::Event::malformed) lose(rank, kNoMessage);
    if (event == Inbox::Event::frame) hear_frame(rank);
    return event != Inbox::Event::malformed;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return errno == EINTR;
  const bool silent = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
  lose(rank, silent ? "its host does not answer" : "its connection ended");
  return false;
}

void Links::hear_frame(int rank) {
  Incoming& from = incoming(rank);
  const FrameHeader& header = from.inbox.header();
  if (header.kind == kFailure) hear_failure(from.inbox.payload());
  if (header.kind == kShutdown) {
    from.shut_down = true;
    from.engine_messages = header.channel;
  }
  if (header.kind == kHeartbeat && hold_) hold_->hear(rank, header.channel == kHeld);
  stir();
}

void Links::hear_failure(const Bytes& words) {
  const auto failure = parse_failure(words, size());
  if (failure && !closing_) record(*failure);
}

void Links::lose(int rank, const std::string& why) {
  incoming(rank).ended = true;
  stir();
  if (closing_ || incoming(rank).shut_down) return;
  const ProcessFailure failure{ProcessFailure::Kind::lost, rank, why};
  if (record(failure)) untold_ = failure;
}

}  // namespace witan

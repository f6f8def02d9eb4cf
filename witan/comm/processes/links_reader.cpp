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
// Layout of a heartbeat's channel: the lowest bit is set if the rank is held, then come tenths of a second of silence,
// and in the upper half the rank that it is about.
constexpr int kAboutShift = 32;
constexpr uint64_t kMostTenths = (uint64_t{1} << 24) - 1;

}  // namespace

void Links::read_all() {
  Deadline next_heartbeat = deadline_in(0);
  for (;;) {
    std::vector<pollfd> fds = {{wake_.fd(), POLLIN, 0}};
    double pause = -seconds_since(next_heartbeat);
    {
      const MutexLock lock(mutex_);
      if (closed_) return;
      for (int other = 0; other < size(); ++other)
        fds.push_back({connected(other) && !incoming(other).ended ? link(other).socket.fd() : -1, POLLIN, 0});
      if (pending_connections_) {
        pending_connections_->add_to(fds);
        pause = std::min(pause, pending_connections_->seconds_to_next_try());
      }
    }
    ::poll(fds.data(), fds.size(), std::max(static_cast<int>(std::ceil(pause * 1e3)), 0));
    uint64_t times = 0;
    if (fds[0].revents != 0) [[maybe_unused]]
      const ssize_t got = ::read(wake_.fd(), &times, sizeof times);
    const auto polled = std::span(fds).subspan(1);
    for (int other = 0; other < size(); ++other)
      if (polled[static_cast<size_t>(other)].revents != 0) read_from(other);
    let_in(polled.subspan(static_cast<size_t>(size())));
    pass_on();
    if (seconds_since(next_heartbeat) >= 0) {
      send_heartbeats();
      notice_silence(next_heartbeat);
      next_heartbeat = deadline_in(heartbeat_seconds_);
      pass_on();
    }
  }
}

void Links::pass_on() {
  std::optional<ProcessFailure> pending;
  std::vector<int> departed;
  bool raised = false;
  {
    const MutexLock lock(mutex_);
    pending = std::exchange(pending_failure_, std::nullopt);
    departed = std::exchange(departed_, {});
    raised = recorded_.has_value();
  }
  if (pending) tell(*pending);
  if (!departed.empty()) tell_departures(departed);
  if (raised) failure_->raise();
}

uint64_t Links::Heartbeat::packed() const {
  const auto tenths = static_cast<uint64_t>(std::clamp(silent_seconds * 10, 0.0, double{kMostTenths}));
  return static_cast<uint64_t>(about + 1) << kAboutShift | tenths << 1 | (held ? 1 : 0);
}

Links::Heartbeat Links::Heartbeat::of(uint64_t channel) {
  return {static_cast<int>(static_cast<int64_t>(channel >> kAboutShift) - 1), (channel & 1) != 0,
          static_cast<double>(channel >> 1 & kMostTenths) / 10};
}

// Rank 0's heartbeats also report other ranks: those that a debugger holds or has released, and those that are silent.
std::vector<Links::Heartbeat> Links::heartbeats() {
  std::vector<Heartbeat> all = {{-1, hold_ && hold_->held_here(), 0}};
  if (rank() != 0) return all;
  const MutexLock lock(mutex_);
  for (int other = 1; other < size(); ++other) {
    const double silent = silent_seconds(other);
    const bool may_hold = hold_ && hold_->may_hold(other);
    if (may_hold || silent > kMissedHeartbeats * heartbeat_seconds_)
      all.push_back({other, may_hold && hold_->held(other), silent});
  }
  return all;
}

void Links::send_heartbeats() {
  const std::vector<Heartbeat> all = heartbeats();
  for (const auto& one : links_) {
    if (!one->connected.load() || !one->sending.try_lock()) continue;
    const TimedMutexLock sending(one->sending, std::adopt_lock);
    // A frame that is still on its way serves the same purpose, and there may be no room for another one after it.
    int unsent = 0;
    if (::ioctl(one->socket.fd(), SIOCOUTQ, &unsent) != 0 || unsent > 0) continue;
    for (const Heartbeat& heartbeat : all)
      send_frame(*one, {kHeartbeat, 0, heartbeat.packed(), 0}, {}, {0, nullptr}, /*last_words=*/true);
  }
}

void Links::notice_silence(Deadline due) {
  const MutexLock lock(mutex_);
  // This process itself was stopped, perhaps with all others, so that their silence counts from now on.
  if (seconds_since(due) > kMissedHeartbeats * heartbeat_seconds_)
    for (Incoming& one : incoming_) {
      one.heard = deadline_in(0);
      one.reported = {};
    }
  for (int other = 0; hold_ && other < size(); ++other) {
    const bool gone = incoming(other).ended || incoming(other).shut_down;
    // A process that is stopped cannot say any more that it is.
    if (gone || (connected(other) && silent_seconds(other) > kMissedHeartbeats * heartbeat_seconds_))
      hold_->hear(other, !gone);
  }
  const auto silent = silence();
  if (silent && connected(silent->rank) && silent_seconds(silent->rank) > silence_seconds_)
    lose(silent->rank, silent->text);
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
    if (event == Inbox::Event::frame) handle_frame(rank);
    return event != Inbox::Event::malformed;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return errno == EINTR;
  const bool silent = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
  lose(rank, silent ? "its host does not answer" : "its connection ended");
  return false;
}

void Links::handle_frame(int rank) {
  Incoming& from = incoming(rank);
  const FrameHeader& header = from.inbox.header();
  if (header.kind == kFailure) handle_failure(from.inbox.payload());
  if (header.kind == kShutdown) {
    if (!from.shut_down && this->rank() == 0) departed_.push_back(rank);
    from.shut_down = true;
    from.engine_messages = header.channel;
  }
  if (header.kind == kDepartures && !on_peer_left(rank, from.inbox.payload())) lose(rank, kNoMessage);
  if (header.kind == kHeartbeat) handle_heartbeat(rank, Heartbeat::of(header.channel));
  wake_sleeper();
}

// A connected rank sends its own heartbeats.
void Links::handle_heartbeat(int rank, const Heartbeat& heartbeat) {
  const int about = heartbeat.about < 0 ? rank : heartbeat.about;
  if (about >= size() || about == this->rank() || (about != rank && (rank != 0 || connected(about)))) return;
  if (hold_) hold_->hear(about, heartbeat.held);
  incoming(about).silent_seconds = heartbeat.silent_seconds;
  incoming(about).reported = deadline_in(0);
}

void Links::handle_failure(const Bytes& words) {
  const auto failure = parse_failure(words, size());
  if (failure && is_new(*failure)) pending_failure_ = failure;
}

// A rank that leaves ignores failures, but passes on the first one, unless it leaves with its own, which it sends to
// all.
bool Links::is_new(const ProcessFailure& failure) {
  return closing_ ? !recorded_ && !std::exchange(passed_on_, true) : record(failure);
}

void Links::lose(int rank, const std::string& why) {
  incoming(rank).ended = true;
  wake_sleeper();
  if (incoming(rank).shut_down) return;
  const ProcessFailure failure{ProcessFailure::Kind::lost, rank, why};
  if (is_new(failure)) pending_failure_ = failure;
}

}  // namespace witan

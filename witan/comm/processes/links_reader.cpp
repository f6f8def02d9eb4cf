// The thread of links.h that reads what other ranks send.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "witan/base/error.h"
#include "witan/comm/processes/links.h"

namespace witan {
namespace {

constexpr size_t kMostWaitingControls = 4;  // a rank is one call ahead of another at most
constexpr size_t kMostChannels = 4096;
constexpr size_t kMostAtOnce = size_t{1} << 18;  // bytes read while others wait for the mutex

const char* const kNoMessage = "it sent a malformed message";

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
  const auto room = next_room(rank);
  const ssize_t got = ::recv(link(rank).socket.fd(), room.data(), std::min(room.size(), kMostAtOnce), 0);
  if (got > 0) {
    from.heard = deadline_in(0);
    advance(rank, static_cast<size_t>(got));
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return errno == EINTR;
  const bool silent = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
  lose(rank, silent ? "its host does not answer" : "its connection ended");
  return false;
}

std::span<std::byte> Links::next_room(int rank) {
  Incoming& from = incoming(rank);
  if (from.header_bytes < sizeof from.header)
    return std::as_writable_bytes(std::span(&from.header, 1)).subspan(from.header_bytes);
  if (from.header.kind != kData) return std::span(from.payload).last(from.left);
  const auto& targets = from.boxes[from.header.channel].targets;
  if (from.discards || targets.empty()) return std::span(trash_).first(from.left);
  return {targets.front().to, std::min(from.left, static_cast<uint64_t>(targets.front().bytes))};
}

void Links::advance(int rank, size_t bytes) {
  Incoming& from = incoming(rank);
  if (from.header_bytes < sizeof from.header) {
    from.header_bytes += bytes;
    if (from.header_bytes == sizeof from.header) begin_frame(rank);
  } else {
    from.left -= bytes;
    if (from.header.kind == kData && !from.discards) count(from.boxes[from.header.channel].targets, bytes);
  }
  if (!from.ended && from.header_bytes == sizeof from.header && from.left == 0) end_frame(rank);
}

void Links::count(std::deque<Target>& targets, size_t bytes) {
  if (targets.empty()) return;  // dropped meanwhile
  Target& target = targets.front();
  target.to += bytes;
  target.bytes -= static_cast<int64_t>(bytes);
  if (target.bytes == 0) targets.pop_front();
}

// Nothing is believed, and nothing allocated, before it is known to be within its bounds.
void Links::begin_frame(int rank) {
  Incoming& from = incoming(rank);
  const Header& header = from.header;
  size_t most = kMostControlBytes;
  if (header.kind == kData) most = kMostDataBytes;
  if (header.kind == kFailure) most = kMostFailureBytes;
  if (header.kind == kShutdown || header.kind == kHeartbeat) most = 0;
  if (header.kind > kHeartbeat || header.unused != 0 || header.bytes > most) return lose(rank, kNoMessage);
  if (header.kind <= kData && !from.boxes.contains(header.channel) && from.boxes.size() == kMostChannels)
    return lose(rank, kNoMessage);
  from.left = header.bytes;
  if (header.kind != kData) return from.payload.resize(header.bytes);
  const Box* target = box(rank, header.channel);
  const bool wanted = target != nullptr && !target->targets.empty() &&
                      header.bytes <= static_cast<uint64_t>(target->targets.front().bytes);
  from.discards = !wanted;
  if (!wanted && !dropped_) lose(rank, kNoMessage);
}

void Links::end_frame(int rank) {
  Incoming& from = incoming(rank);
  from.header_bytes = 0;
  const uint32_t kind = from.header.kind;
  if (kind < kControls) {
    auto& controls = from.boxes[from.header.channel].controls[kind];
    if (controls.size() == kMostWaitingControls) return lose(rank, kNoMessage);
    controls.push_back(std::move(from.payload));
  }
  if (kind == kFailure) hear_failure(from.payload);
  if (kind == kShutdown) from.shut_down = true;
  if (kind == kHeartbeat && hold_) hold_->hear(rank, from.header.channel == kHeld);
  from.payload = {};
  changed_.notify_all();
}

void Links::hear_failure(const Bytes& words) {
  uint32_t head[2] = {};
  if (words.size() < sizeof head) return;
  std::memcpy(head, words.data(), sizeof head);
  if (head[0] > static_cast<uint32_t>(ProcessFailure::Kind::failed) || head[1] >= links_.size()) return;
  const std::string text(reinterpret_cast<const char*>(words.data()) + sizeof head, words.size() - sizeof head);
  if (!closing_) record({static_cast<ProcessFailure::Kind>(head[0]), static_cast<int>(head[1]), text});
}

void Links::lose(int rank, const std::string& why) {
  incoming(rank).ended = true;
  changed_.notify_all();
  if (closing_ || incoming(rank).shut_down) return;
  const ProcessFailure failure{ProcessFailure::Kind::lost, rank, why};
  if (record(failure)) untold_ = failure;
}

}  // namespace witan

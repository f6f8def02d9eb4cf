#include "witan/comm/processes/links.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "witan/base/error.h"

namespace witan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTellSeconds = 1, kShutdownSeconds = 2;
constexpr double kLeastSilenceSeconds = 2;                                  // a busy machine may let a thread wait
constexpr double kLeastHeartbeatSeconds = 0.25, kMostHeartbeatSeconds = 5;  // a tenth of the silence in between

}  // namespace

Links::Links(int rank, std::vector<Peer> peers, double silence_seconds, std::shared_ptr<DebugHold> hold)
    : rank_(rank),
      silence_seconds_(std::max(silence_seconds, kLeastSilenceSeconds)),
      heartbeat_seconds_(std::clamp(silence_seconds / 10, kLeastHeartbeatSeconds, kMostHeartbeatSeconds)),
      failure_(std::make_shared<Failure>([this] {
        fail({ProcessFailure::Kind::failed, rank_, ""});
      })),
      hold_(std::move(hold)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      incoming_(peers.size()),
      trash_(kMostDataBytes) {
  for (Peer& peer : peers) {
    links_.push_back(std::make_unique<Link>());
    links_.back()->host = std::move(peer.host);
    links_.back()->socket = std::move(peer.socket);
    const int other = size() - 1;
    const Socket& socket = links_.back()->socket;
    incoming_[static_cast<size_t>(other)].ended = !socket.open();
    if (hold_ && hold_->may_hold(other) && socket.open()) wait_for_reader(socket);
    incoming_[static_cast<size_t>(other)].heard = Clock::now();
  }
  reader_ = std::thread([this] { read_all(); });
}

Links::~Links() {
  std::optional<ProcessFailure> failure;
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    failure = recorded_;
  }
  // The reading thread may not have come to it yet, and a shutdown message alone would look like success.
  if (failure) tell(*failure);
  tell_all({kShutdown, 0, 0, 0}, {});
  for (const auto& one : links_)
    if (one->socket.open()) ::shutdown(one->socket.fd(), SHUT_WR);
  {
    // A connection that is closed before the other side's last words are read would take this side's with it.
    MutexLock lock(mutex_);
    const auto done = [](const Incoming& one) { return one.ended || one.shut_down; };
    const Deadline deadline = deadline_in(kShutdownSeconds);
    while (!std::ranges::all_of(incoming_, done) && changed_.wait_until(lock, deadline)) {
    }
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.fd(), &one, sizeof one);
  reader_.join();
}

bool Links::record(const ProcessFailure& failure) {
  if (recorded_) return false;
  recorded_ = failure;
  changed_.notify_all();
  return true;
}

ProcessFailure Links::fail(ProcessFailure failure) {
  bool first = false;
  {
    const MutexLock lock(mutex_);
    first = !closing_ && record(failure);
    if (recorded_) failure = *recorded_;
  }
  if (first) tell(failure);
  failure_->raise();
  return failure;
}

std::optional<ProcessFailure> Links::failed() const {
  const MutexLock lock(mutex_);
  return recorded_;
}

void Links::throw_if_failed() const {
  if (const auto failure = failed()) throw_failure(*failure, host(failure->rank));
}

void Links::tell(const ProcessFailure& failure) {
  const Bytes words = pack_failure(failure);
  tell_all({kFailure, 0, 0, words.size()}, words);
}

void Links::tell_all(const FrameHeader& header, std::span<const std::byte> bytes) {
  const Deadline deadline = deadline_in(kTellSeconds);
  for (const auto& one : links_) {
    if (!one->socket.open()) continue;
    if (!one->sending.try_lock_until(deadline)) continue;
    const TimedMutexLock sending(one->sending, std::adopt_lock);
    send_frame(*one, header, bytes, {-seconds_since(deadline), nullptr}, /*last_words=*/true);
  }
}

std::optional<ProcessFailure> Links::silence() const {
  std::optional<ProcessFailure> longest;
  double most = kMissedHeartbeats * heartbeat_seconds_;
  for (int rank = 0; rank < size(); ++rank) {
    const Incoming& one = incoming(rank);
    const double seconds = seconds_since(one.heard);
    if (one.ended || one.shut_down || seconds <= most || (hold_ && hold_->may_hold(rank))) continue;
    most = seconds;
    longest = {ProcessFailure::Kind::lost, rank,
               cat("no heartbeat for ", std::lround(seconds * 10) / 10.0,
                   " s; its process is stopped or the network to it is cut")};
  }
  return longest;
}

Links::Sent Links::send_frame(Link& to, const FrameHeader& header, std::span<const std::byte> bytes,
                              PatientDeadline deadline, bool last_words) {
  if (to.torn) return Sent::ended;
  bool begun = false;
  const auto stop = [&](Sent sent) {
    to.sending.assert_held();
    to.torn = begun || sent == Sent::ended;
    return sent;
  };
  const auto head = std::as_bytes(std::span(&header, 1));
  for (auto piece : {head, bytes}) {
    const int more = piece.data() == head.data() && !bytes.empty() ? MSG_MORE : 0;
    while (!piece.empty()) {
      const ssize_t sent = ::send(to.socket.fd(), piece.data(), piece.size(), MSG_NOSIGNAL | more);
      if (sent >= 0) {
        begun = true;
        piece = piece.subspan(static_cast<size_t>(sent));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (deadline.expired()) return stop(Sent::late);
        if (!last_words && failed()) return stop(Sent::stopped);
        wait_writable(to.socket, 0.05);
      } else if (errno != EINTR) {
        return stop(Sent::ended);
      }
    }
  }
  return Sent::whole;
}

void Links::send(int to, const FrameHeader& header, std::span<const std::byte> bytes, double seconds) {
  throw_if_failed();
  Sent sent;
  {
    Link& other = link(to);
    const TimedMutexLock sending(other.sending);
    sent = send_frame(other, header, bytes, {seconds, hold_.get()}, /*last_words=*/false);
  }
  if (sent == Sent::stopped) throw_if_failed();
  if (sent == Sent::late) {
    const auto failure = fail({ProcessFailure::Kind::lost, to,
                               cat("send timed out: it has not read from rank ", rank_, " for ", seconds, " s")});
    throw_failure(failure, host(failure.rank));
  }
  // A connection that has ended is the reading thread's to judge: the next wait hears of it.
}

void Links::send_control(int to, uint64_t channel, Control kind, std::span<const std::byte> bytes, double seconds) {
  send(to, {static_cast<uint32_t>(kind), 0, channel, bytes.size()}, bytes, seconds);
}

void Links::send_data(int to, uint64_t channel, const std::byte* data, int64_t bytes, double seconds) {
  for (std::span<const std::byte> rest(data, static_cast<size_t>(bytes)); !rest.empty();) {
    const auto piece = rest.first(std::min(rest.size(), kMostDataBytes));
    send(to, {kData, 0, channel, piece.size()}, piece, seconds);
    rest = rest.subspan(piece.size());
  }
}

void Links::take(int from, uint64_t channel, std::byte* to, int64_t bytes) {
  const MutexLock lock(mutex_);
  incoming(from).inbox.want(channel, to, bytes);
}

void Links::drop(uint64_t channel) {
  const MutexLock lock(mutex_);
  dropped_ = true;
  for (Incoming& one : incoming_) one.inbox.drop(channel);
}

bool Links::View::has_control(int from, uint64_t channel, Control kind) const {
  links_.mutex_.assert_held();
  return links_.incoming(from).inbox.has_control(channel, kind);
}

const Links::Bytes& Links::View::first_control(int from, uint64_t channel, Control kind) const {
  links_.mutex_.assert_held();
  return links_.incoming(from).inbox.first_control(channel, kind);
}

Links::Bytes Links::View::next_control(int from, uint64_t channel, Control kind) {
  links_.mutex_.assert_held();
  return links_.incoming(from).inbox.next_control(channel, kind);
}

bool Links::View::arrived(int from, uint64_t channel) const {
  links_.mutex_.assert_held();
  return links_.incoming(from).inbox.arrived(channel);
}

bool Links::View::left(int rank) const {
  links_.mutex_.assert_held();
  return links_.incoming(rank).shut_down;
}

void Links::wait(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
                 const std::function<std::string(View&)>& late, double seconds) {
  PatientDeadline deadline(seconds, hold_.get());
  View view(*this);
  ProcessFailure failure{ProcessFailure::Kind::disagreement, rank_, ""};
  {
    MutexLock lock(mutex_);
    for (bool expired = false;;) {
      if (done(view)) return;
      if (recorded_) break;
      failure.text = lost(view);
      if (failure.text.empty() && expired) {
        failure.text = late(view);
        if (const auto silent = silence()) failure = *silent;  // whoever is late may itself wait for that one
      }
      if (!failure.text.empty()) break;
      changed_.wait_until(lock, deadline.next_look());
      expired = deadline.expired();
    }
  }
  // Whoever was first is right: another rank may have said the same meanwhile.
  failure = fail(std::move(failure));
  throw_failure(failure, host(failure.rank));
}

}  // namespace witan

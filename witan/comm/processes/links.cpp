#include "witan/comm/processes/links.h"

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
      stirred_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
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
  linger(failure ? 0 : kShutdownSeconds, [this] {
    mutex_.assert_held();
    return recorded_ || engine_ == nullptr || !engine_->sending();
  });
  tell_all(
      [this](int rank) {
        const MutexLock lock(mutex_);
        return FrameHeader{kShutdown, 0, engine_ == nullptr ? 0 : engine_->sent(rank), 0};
      },
      {});
  for (const auto& one : links_)
    if (one->socket.open()) ::shutdown(one->socket.fd(), SHUT_WR);
  // A connection that is closed before the other side's last words are read would take this side's with it.
  linger(kShutdownSeconds, [this] {
    mutex_.assert_held();
    return std::ranges::all_of(incoming_, [](const Incoming& one) { return one.ended || one.shut_down; });
  });
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.fd(), &one, sizeof one);
  reader_.join();
}

bool Links::record(const ProcessFailure& failure) {
  if (recorded_) return false;
  recorded_ = failure;
  stir();
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
  tell_all([&](int) { return FrameHeader{kFailure, 0, 0, words.size()}; }, words);
}

void Links::tell_all(const std::function<FrameHeader(int rank)>& header, std::span<const std::byte> bytes) {
  const Deadline deadline = deadline_in(kTellSeconds);
  for (int rank = 0; rank < size(); ++rank) {
    Link& one = link(rank);
    if (!one.socket.open()) continue;
    if (!one.sending.try_lock_until(deadline)) continue;
    const TimedMutexLock sending(one.sending, std::adopt_lock);
    send_frame(one, header(rank), bytes, {-seconds_since(deadline), nullptr}, /*last_words=*/true);
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
    const auto failure = fail(not_reading(to, seconds));
    throw_failure(failure, host(failure.rank));
  }
  // A connection that has ended is the reading thread's to judge: the next wait hears of it.
}

ProcessFailure Links::not_reading(int rank, double seconds) const {
  return {ProcessFailure::Kind::lost, rank,
          cat("send timed out: it has not read from rank ", rank_, " for ", seconds, " s")};
}

void Links::send_control(int to, uint64_t channel, Control kind, std::span<const std::byte> bytes, double seconds) {
  if (engine_ != nullptr) {
    throw_if_failed();
    const MutexLock lock(mutex_);
    return engine_->send_control(to, channel, static_cast<uint32_t>(kind), bytes);
  }
  send(to, {static_cast<uint32_t>(kind), 0, channel, bytes.size()}, bytes, seconds);
}

void Links::send_data(int to, uint64_t channel, uint64_t tag, const std::byte* data, int64_t bytes, double seconds) {
  if (engine_ != nullptr) {
    throw_if_failed();
    const MutexLock lock(mutex_);
    return engine_->send_data(to, channel, tag, data, bytes);
  }
  for (std::span<const std::byte> rest(data, static_cast<size_t>(bytes)); !rest.empty();) {
    const auto piece = rest.first(std::min(rest.size(), kMostDataBytes));
    send(to, {kData, 0, channel, piece.size()}, piece, seconds);
    rest = rest.subspan(piece.size());
  }
}

void Links::take(int from, uint64_t channel, uint64_t tag, std::byte* to, int64_t bytes) {
  const MutexLock lock(mutex_);
  if (engine_ != nullptr) return engine_->take(from, channel, tag, to, bytes);
  incoming(from).inbox.want(channel, to, bytes);
}

void Links::drop(uint64_t channel) {
  const MutexLock lock(mutex_);
  dropped_ = true;
  if (engine_ != nullptr) engine_->drop(channel);
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
  if (links_.engine_ != nullptr) return !links_.engine_->taking(from, channel);
  return links_.incoming(from).inbox.arrived(channel);
}

bool Links::View::sent(int to, uint64_t channel) const {
  links_.mutex_.assert_held();
  return links_.engine_ == nullptr || !links_.engine_->sending(to, channel);
}

bool Links::View::left(int rank) const {
  links_.mutex_.assert_held();
  const Incoming& from = links_.incoming(rank);
  const MessageEngine* engine = links_.engine_.get();
  return from.shut_down && (engine == nullptr || engine->received(rank) >= from.engine_messages);
}

void Links::wait(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
                 const std::function<std::string(View&)>& late, double seconds) {
  const auto disagreement = [&](View& view) {
    return ProcessFailure{ProcessFailure::Kind::disagreement, rank_, late(view)};
  };
  wait_for(done, lost, disagreement, seconds);
}

bool Links::wait_some(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
                      double seconds) {
  bool there = false;
  const Deadline end = deadline_in(seconds);
  const auto done_or_late = [&](View& view) { return (there = done(view)) || seconds_since(end) >= 0; };
  wait_for(
      done_or_late, lost, [](View&) { return ProcessFailure{}; }, seconds);
  return there;
}

void Links::wait_for(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
                     const std::function<ProcessFailure(View&)>& late, double seconds) {
  PatientDeadline deadline(seconds, hold_.get());
  View view(*this);
  ProcessFailure failure{ProcessFailure::Kind::disagreement, rank_, ""};
  const Deadline looks_until = deadline_in(look_seconds_);
  for (bool expired = false;; expired = deadline.expired()) {
    bool sleeps = false;
    {
      MutexLock lock(mutex_);
      if (engine_ != nullptr) progress();
      if (done(view)) return;
      if (recorded_) break;
      if (expired || seconds_since(looks_until) >= 0) {
        failure.text = lost(view);
        if (failure.text.empty() && expired) {
          failure = late(view);
          if (const auto silent = silence()) failure = *silent;  // whoever is late may itself wait for that one
        }
        if (const auto broken = trouble()) failure = *broken;
        if (!failure.text.empty()) break;
        if (engine_ == nullptr || asleep_)
          changed_.wait_until(lock, deadline.next_look());
        else
          sleeps = asleep_ = engine_->arm();
      }
    }
    if (sleeps) sleep(deadline.next_look());
  }
  // Whoever was first is right: another rank may have said the same meanwhile.
  failure = fail(std::move(failure));
  throw_failure(failure, host(failure.rank));
}

}  // namespace witan

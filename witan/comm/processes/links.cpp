#include "witan/comm/processes/links.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "witan/base/error.h"

namespace witan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kShutdownSeconds = 2;
constexpr double kReportHeartbeats = 2.5;   // heartbeats for which rank 0's last report about a rank is valid
constexpr double kLeastSilenceSeconds = 2;  // a busy machine may let a thread wait
constexpr double kLeastHeartbeatSeconds = 0.25, kMostHeartbeatSeconds = 5;  // a tenth of the silence in between

}  // namespace

Links::Links(Met met, double silence_seconds, std::shared_ptr<DebugHold> hold)
    : self_(std::move(met.self)),
      silence_seconds_(std::max(silence_seconds, kLeastSilenceSeconds)),
      heartbeat_seconds_(std::clamp(silence_seconds / 10, kLeastHeartbeatSeconds, kMostHeartbeatSeconds)),
      failure_(std::make_shared<Failure>([this] {
        fail({ProcessFailure::Kind::failed, rank(), ""});
      })),
      hold_(std::move(hold)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      sleeper_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      listener_(std::move(met.listener)),
      incoming_(met.peers.size()),
      trash_(kMostDataBytes) {
  std::array<int, 2> ends{-1, -1};
  require<CommError>(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0,
                     "no connections can be made: ", std::strerror(errno));
  no_failure_ = Socket(ends[0]);
  const MutexLock lock(mutex_);
  no_failure_end_ = Socket(ends[1]);
  for (Peer& peer : met.peers) {
    const int other = size();
    links_.push_back(std::make_unique<Link>());
    links_.back()->host = std::move(peer.host);
    links_.back()->at = std::move(peer.at);
    incoming(other).heard = Clock::now();
    if (peer.socket.open())
      attach(other, std::move(peer.socket));
    else if (other != rank())
      roster_.expected.insert(other);
  }
  if (listener_.open()) pending_connections_.emplace(listener_, self_, roster_);
  reader_ = std::thread([this] { read_all(); });
}

Links::~Links() {
  std::optional<ProcessFailure> failure;
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    failure = recorded_;
  }
  wake_reader();  // no more connections are accepted
  // The reading thread may not have come to it yet, and a shutdown message alone would look like success.
  if (failure) tell(*failure);
  linger(failure ? 0 : kShutdownSeconds, [this] {
    mutex_.assert_held();
    return recorded_ || engine_ == nullptr || !engine_->sending();
  });
  tell_messages();
  tell_all(
      [this](int to) {
        const MutexLock lock(mutex_);
        return FrameHeader{kShutdown, 0, engine_ == nullptr ? 0 : engine_->sent(to), 0};
      },
      {});
  if (rank() == 0 && !failure) await_departures();
  for (const auto& one : links_)
    if (one->connected.load()) ::shutdown(one->socket.fd(), SHUT_WR);
  // A connection that is closed before the other side's last words are read would take this side's with it.
  linger(kShutdownSeconds, [this] {
    mutex_.assert_held();
    return all_left();
  });
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  wake_reader();
  reader_.join();
}

int Links::connections() const {
  return static_cast<int>(std::ranges::count_if(links_, [](const auto& one) { return one->connected.load(); }));
}

bool Links::all_left() const {
  for (int other = 0; other < size(); ++other)
    if (connected(other) && !incoming(other).ended && !incoming(other).shut_down) return false;
  return true;
}

void Links::wake_reader() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.fd(), &one, sizeof one);
}

bool Links::record(const ProcessFailure& failure) {
  if (recorded_) return false;
  recorded_ = failure;
  no_failure_end_.close();
  wake_sleeper();
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
  for (int to = 0; to < size(); ++to)
    if (connected(to)) tell_one(to, header(to), bytes, deadline);
}

void Links::tell_one(int rank, const FrameHeader& header, std::span<const std::byte> bytes, Deadline deadline) {
  Link& one = link(rank);
  if (!one.sending.try_lock_until(deadline)) return;
  const TimedMutexLock sending(one.sending, std::adopt_lock);
  send_frame(one, header, bytes, {-seconds_since(deadline), nullptr}, /*last_words=*/true);
}

double Links::silent_seconds(int rank) const {
  const Incoming& one = incoming(rank);
  if (rank == this->rank() || one.ended || one.shut_down) return 0;
  if (connected(rank)) return seconds_since(one.heard);
  return seconds_since(one.reported) < kReportHeartbeats * heartbeat_seconds_ ? one.silent_seconds : 0;
}

std::optional<ProcessFailure> Links::silence() const {
  std::optional<ProcessFailure> longest;
  double most = kMissedHeartbeats * heartbeat_seconds_;
  for (int other = 0; other < size(); ++other) {
    const double seconds = silent_seconds(other);
    if (seconds <= most || (hold_ && hold_->may_hold(other))) continue;
    most = seconds;
    longest = {ProcessFailure::Kind::lost, other,
               cat("no heartbeat for ", std::lround(seconds * 10) / 10.0,
                   " s; its process is stopped or the network to it is cut")};
  }
  return longest;
}

double Links::grace_seconds() const {
  return connections() + 1 < size() ? kReportHeartbeats * heartbeat_seconds_ : 0;
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
  if (!reach(to, seconds)) return throw_if_failed();  // it has left: the next wait reports it
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
  // The reading thread handles a closed connection: the next wait reports it.
}

ProcessFailure Links::not_reading(int rank, double seconds) const {
  return {ProcessFailure::Kind::lost, rank,
          cat("send timed out: it has not read from rank ", this->rank(), " for ", seconds, " s")};
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
    return ProcessFailure{ProcessFailure::Kind::disagreement, rank(), late(view)};
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

Links::Bytes Links::await_control(int from, uint64_t channel, Control kind, const std::string& lost,
                                  const std::string& late, double seconds) {
  Bytes bytes;
  wait(
      [&](View& view) {
        if (!view.has_control(from, channel, kind)) return false;
        bytes = view.next_control(from, channel, kind);
        return true;
      },
      [&](View& view) { return view.left(from) ? lost : ""; }, [&](View&) { return late; }, seconds);
  return bytes;
}

void Links::wait_for(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
                     const std::function<ProcessFailure(View&)>& late, double seconds) {
  PatientDeadline deadline(seconds, hold_.get());
  View view(*this);
  ProcessFailure failure{ProcessFailure::Kind::disagreement, rank(), ""};
  const Deadline looks_until = deadline_in(look_seconds_);
  std::optional<Deadline> grace;  // once the time is over: until when rank 0 may say why
  const auto next_look = [&] { return grace ? *grace : deadline.next_look(); };
  const auto is_expired = [&] {
    if (!grace && deadline.expired()) grace = deadline_in(grace_seconds());
    return grace && seconds_since(*grace) >= 0;
  };
  for (bool expired = false;; expired = is_expired()) {
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
          if (const auto silent = silence()) failure = *silent;  // the late rank may itself wait for that one
        }
        if (const auto broken = trouble()) failure = *broken;
        if (!failure.text.empty()) break;
        if (engine_ == nullptr || asleep_)
          changed_.wait_until(lock, next_look());
        else
          sleeps = asleep_ = engine_->arm();
      }
    }
    if (sleeps) sleep(next_look());
  }
  // The first failure counts: another rank may have reported the same meanwhile.
  failure = fail(std::move(failure));
  throw_failure(failure, host(failure.rank));
}

}  // namespace witan

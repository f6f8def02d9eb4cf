#include "witan/comm/cuda/watch.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/cuda.h"
#include "witan/comm/deadline.h"
#include "witan/comm/failure.h"
#include "witan/tensor/trace_context.h"

namespace witan::cuda {
namespace {

// Until `query` is anything but not ready.
template <class Query>
bool ready_within(double seconds, const Query& query) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (query() == cudaErrorNotReady) {
    cudaGetLastError();
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

}  // namespace

bool done_within(cudaStream_t stream, double seconds) noexcept {
  return ready_within(seconds, [&] { return cudaStreamQuery(stream); });
}

bool done_within(cudaEvent_t event, double seconds) noexcept {
  return ready_within(seconds, [&] { return cudaEventQuery(event); });
}

std::shared_ptr<DeviceWatch> watch(Stream& stream, HostGroup& host) {
  return std::make_shared<DeviceWatch>(stream, host.failure(), host.deadline().seconds, host.hold(),
                                       HostWords::make(host));
}

DeviceWatch::DeviceWatch(Stream& stream, std::shared_ptr<Failure> failure, double deadline_seconds,
                         std::shared_ptr<DebugHold> hold, std::unique_ptr<HostWords> parting)
    : stream_(stream),
      failure_(std::move(failure)),
      deadline_(deadline_seconds),
      hold_(std::move(hold)),
      parting_(std::move(parting)) {
  stream_.queue()->set_poll([this](double waited) { poll(waited); });
}

DeviceWatch::~DeviceWatch() {
  stream_.queue()->set_poll({});
  join_aborts();
  part();
  for (std::byte* shared : kept_) release(stream_.device().index, shared);
}

void DeviceWatch::part() noexcept {
  // A rank that was not stopped has done all of its calls, and others have done their parts of them: they can only be
  // closing what they opened.
  const bool waits = aborted_ || !kept_.empty();
  if (waits) done_within(native(stream_), kPartingSeconds);
  if (!parting_) return;  // then no other rank reaches this one's memory
  parting_->set();
  if (waits) parting_->await_all(kPartingSeconds);
}

void DeviceWatch::poll(double waited_seconds) {
  if (aborted_ || failure_->raised()) {
    abort_all();
    throw AbortedError(cat(stream_.device(), ": stopped, as another rank failed"));
  }
  const std::string reason = complaint(waited_seconds);
  if (waited_seconds < last_poll_)
    held_until_ = 0;  // another wait
  else if (waited_seconds - last_poll_ > kStoppedSeconds)
    held_until_ = waited_seconds;
  last_poll_ = waited_seconds;
  if (reason.empty() && waited_seconds - held_until_ <= deadline_) return;
  if (reason.empty() && hold_ && hold_->held()) {
    held_until_ = waited_seconds;
    return;
  }
  abort_all();
  const std::string where = in_words(stream_.trace_context());
  throw CommError(reason.empty() ? cat(stream_.device(), " did not finish within ", deadline_,
                                       " s: another rank is late or lost, or made other calls",
                                       where.empty() ? "" : "; the host waited" + where)
                                 : cat(reason, where.empty() ? "" : "; its host was" + where));
}

double DeviceWatch::device_deadline_seconds() const {
  constexpr double kForEver = 1e8;  // s: years; nanoseconds in 64 bits hold it
  return hold_ ? kForEver : deadline_;
}

std::string DeviceWatch::complaint(double waited_seconds) const {
  for (Watched* watched : watched_)
    if (std::string reason = watched->complaint(waited_seconds); !reason.empty()) return reason;
  return {};
}

bool DeviceWatch::settled() noexcept {
  // A rank that throws does not wait for the others, which may be waiting for it: it tells them at once, not only when
  // it is unwound and its memory gone.
  bool done = std::uncaught_exceptions() == 0;
  if (!done) failure_->raise();
  try {
    if (done) stream_.wait();
  } catch (...) {
    done = false;  // the next error gives the reason
  }
  if (!done) {
    abort_all();
    join_aborts();
  }
  return done;
}

void DeviceWatch::abort_all() noexcept {
  if (std::exchange(aborted_, true)) return;
  for (Watched* watched : watched_) watched->stop();
  for (Watched* watched : watched_) {
    try {
      aborts_.emplace_back([watched] { watched->abort(); });
    } catch (...) {
      watched->abort();
    }
  }
}

void DeviceWatch::join_aborts() noexcept {
  if (aborts_.empty()) return;
  for (std::thread& one : aborts_) one.join();
  aborts_.clear();
}

}  // namespace witan::cuda

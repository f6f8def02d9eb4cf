#include "witan/comm/cuda/watch.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/cuda.h"
#include "witan/comm/rendezvous.h"

namespace witan::cuda {

std::shared_ptr<DeviceWatch> watch(Stream& stream, const HostGroup& host) {
  return std::make_shared<DeviceWatch>(stream, host.failure(), host.deadline_seconds());
}

DeviceWatch::DeviceWatch(Stream& stream, std::shared_ptr<Failure> failure, double deadline_seconds)
    : stream_(stream), failure_(std::move(failure)), deadline_(deadline_seconds) {
  stream_.queue()->set_look([this](double waited) { look(waited); });
}

DeviceWatch::~DeviceWatch() {
  stream_.queue()->set_look({});
}

void DeviceWatch::look(double waited_seconds) {
  if (failure_->raised()) {
    stop_all();
    throw AbortedError(cat(stream_.device(), ": stopped, as another rank failed"));
  }
  const std::string reason = complaint();
  if (reason.empty() && waited_seconds <= deadline_) return;
  stop_all();
  throw CommError(reason.empty() ? cat(stream_.device(), " was not done within ", deadline_,
                                       " s: another rank is late or lost, or does not make the same calls")
                                 : reason);
}

std::string DeviceWatch::complaint() const {
  for (Watched* watched : watched_)
    if (std::string reason = watched->complaint(); !reason.empty()) return reason;
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
    done = false;  // whoever throws next says why
  }
  if (!done) abort_all();
  return done;
}

void DeviceWatch::stop_all() noexcept {
  for (Watched* watched : watched_) watched->stop();
}

void DeviceWatch::abort_all() noexcept {
  if (std::exchange(aborted_, true)) return;
  stop_all();
  std::vector<std::thread> aborts;
  for (Watched* watched : watched_) {
    try {
      aborts.emplace_back([watched] { watched->abort(); });
    } catch (...) {
      watched->abort();
    }
  }
  for (std::thread& one : aborts) one.join();
  // Peers may still be storing into this rank's memory, which goes next; they have been told to stop.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

}  // namespace witan::cuda

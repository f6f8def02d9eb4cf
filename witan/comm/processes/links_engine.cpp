// The functions of links.h for jobs whose messages an engine carries.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "witan/comm/processes/links.h"

namespace witan {
namespace {

// Falling asleep and being woken take tens of microseconds: as long as a call of a few small messages. Longer looks
// are taken from whoever else wants the core; and a thread that yields in between loses its turn for milliseconds on
// kernels that charge for it (Linux 6.18).
constexpr double kPollSeconds = 100e-6;
constexpr double kMostSleepSeconds = 0.5;  // an engine that forgot to wake a thread costs no more
constexpr double kLingerLookSeconds = 1e-3;

}  // namespace

void Links::use(std::unique_ptr<MessageEngine> engine, bool looks) {
  const MutexLock lock(mutex_);
  engine_ = std::move(engine);
  look_seconds_ = looks ? kPollSeconds : 0;
}

void Links::wake_sleeper() {
  changed_.notify_all();
  const uint64_t one = 1;
  if (asleep_) [[maybe_unused]]
    const ssize_t written = ::write(sleeper_event_.fd(), &one, sizeof one);
}

// Control messages are held to the rules of the connections. Once a rank has failed nothing that an engine carries is
// of use, and UCX 1.13 may abort the process over a TCP connection whose other end goes while it is made.
bool Links::progress() {
  if (recorded_) return false;
  bool moved = engine_->progress();
  while (auto control = engine_->next_control()) {
    moved = true;
    const auto kind = static_cast<Control>(control->kind);
    if (!incoming(control->from).inbox.put_control(control->channel, kind, std::move(control->bytes)))
      broken_ = {ProcessFailure::Kind::lost, control->from, kNoMessage};
  }
  if (moved) wake_sleeper();
  return moved;
}

std::optional<ProcessFailure> Links::trouble() const {
  if (engine_ == nullptr || broken_) return broken_;
  const auto trouble = engine_->trouble();
  return trouble ? std::optional(ProcessFailure{ProcessFailure::Kind::lost, trouble->rank, trouble->why})
                 : std::nullopt;
}

void Links::sleep(Deadline until) {
  std::array<pollfd, 2> fds = {{{engine_->descriptor(), POLLIN, 0}, {sleeper_event_.fd(), POLLIN, 0}}};
  const double seconds = std::clamp(-seconds_since(until), 0.0, kMostSleepSeconds);
  ::poll(fds.data(), fds.size(), static_cast<int>(std::ceil(seconds * 1e3)));
  const MutexLock lock(mutex_);
  asleep_ = false;
  uint64_t times = 0;
  [[maybe_unused]] const ssize_t got = ::read(sleeper_event_.fd(), &times, sizeof times);
  changed_.notify_all();  // another thread may have to sleep in this one's place
}

void Links::wait_sent(const std::vector<int>& ranks, uint64_t channel, double seconds) {
  if (engine_ == nullptr) return;
  const auto unsent = [&](View& view) {
    return std::ranges::find_if(ranks, [&](int rank) { return rank != this->rank() && !view.sent(rank, channel); });
  };
  wait_for([&](View& view) { return unsent(view) == ranks.end(); }, [](View&) { return ""; },
           [&](View& view) { return not_reading(*unsent(view), seconds); }, seconds);
}

void Links::linger(double seconds, const std::function<bool()>& done) {
  MutexLock lock(mutex_);
  for (const Deadline end = deadline_in(seconds); !done() && seconds_since(end) < 0;) {
    if (engine_ != nullptr) progress();
    if (!done()) changed_.wait_until(lock, engine_ == nullptr ? end : std::min(end, deadline_in(kLingerLookSeconds)));
  }
}

}  // namespace witan

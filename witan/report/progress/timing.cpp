#include "witan/report/progress/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace witan {

void RateEstimator::update(double now, double done) {
  const double seconds = std::max(now - now_, 0.0), units = std::max(done - done_, 0.0);
  if (updates_ > 0) {
    const double keep = updates_ <= 2 ? 0 : std::exp(-seconds / window_);  // the second interval replaces the first
    seconds_ = keep * seconds_ + seconds;
    units_ = keep * units_ + units;
  }
  ++updates_;
  now_ = now;
  done_ = done;
}

std::optional<double> RateEstimator::rate() const {
  if (seconds_ <= 0 || units_ <= 0) return std::nullopt;
  return units_ / seconds_;
}

std::optional<double> RateEstimator::remaining(double total) const {
  if (updates_ > 0 && done_ >= total) return 0;
  const std::optional<double> per_second = rate();
  if (!per_second) return std::nullopt;
  return (total - done_) / *per_second;
}

double StopClock::poll(double now) {
  const double since = now - std::exchange(looked_at_, now).value_or(now);
  if (interval_ <= 0 || since <= interval_ + kLate) return 0;
  stopped_ += since - interval_;
  return since - interval_;
}

Ticker::Ticker(double seconds, std::function<void()> tick) : tick_(std::move(tick)) {
  if (seconds > 0) thread_ = std::thread([this, seconds] { run(seconds); });
}

Ticker::~Ticker() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Ticker::run(double seconds) {
  const auto pause = std::chrono::duration_cast<CondVar::Time::duration>(std::chrono::duration<double>(seconds));
  MutexLock lock(mutex_);
  while (!ended_) {
    const CondVar::Time next = std::chrono::steady_clock::now() + pause;
    while (!ended_ && end_.wait_until(lock, next)) {
    }
    if (!ended_) tick_();
  }
}

}  // namespace witan

#include "witan/report/progress/ticker.h"

#include <chrono>
#include <utility>

namespace witan {

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

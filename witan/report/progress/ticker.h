// Does something at regular intervals, from a thread of its own.
#pragma once

#include <functional>
#include <thread>

#include "witan/base/threads/mutex.h"

namespace witan {

class Ticker {
 public:
  // Calls tick() every `seconds` as long as it lives; 0: never, and without a thread.
  Ticker(double seconds, std::function<void()> tick);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void run(double seconds);

  const std::function<void()> tick_;
  Mutex mutex_;
  bool ended_ WITAN_GUARDED_BY(mutex_) = false;
  CondVar end_;
  std::thread thread_;
};

}  // namespace witan

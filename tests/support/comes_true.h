// Waits for conditions without a notification: a file, a line of another process, memory of the kernel.
#pragma once

#include <chrono>
#include <thread>

namespace witan::test {

// Polls condition() for up to a minute and returns whether it became true.
template <class Condition>
bool comes_true(const Condition& condition, double seconds = 60) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return condition();
}

}  // namespace witan::test

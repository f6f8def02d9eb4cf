#include "witan/tensor/timing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/base/numbers/median.h"
#include "witan/tensor/cuda.h"

namespace witan {

std::vector<double> time_calls(Stream& stream, int calls, const std::function<void()>& call) {
  if (stream.is_cuda()) return cuda::time_calls(*stream.queue(), calls, call);
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    const double begin = stream.now();
    call();
    seconds.push_back(stream.now() - begin);
  }
  return seconds;
}

double median_seconds(Stream& stream, double budget, const std::function<void()>& call) {
  constexpr int kWarmUps = 2, kFewest = 5, kMost = 200;
  constexpr double kShortest = 2e-4;
  time_calls(stream, kWarmUps, call);
  const double once = std::max(time_calls(stream, 1, call).front(), 1e-7);
  const int calls = std::max(static_cast<int>(std::ceil(kShortest / once)), 1);
  const int samples = static_cast<int>(std::clamp<double>(budget / (once * calls), kFewest, kMost));
  return median(time_calls(stream, samples,
                           [&] {
                             for (int i = 0; i < calls; ++i) call();
                           })) /
         calls;
}

}  // namespace witan

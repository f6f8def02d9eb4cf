#include "witan/tensor/timing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/tensor/cuda.h"

namespace witan {
namespace {

// Seconds of each of `samples` calls.
std::vector<double> sample(Stream& stream, int samples, const std::function<void()>& call) {
  if (stream.is_cuda()) return cuda::time_calls(*stream.queue(), samples, call);
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) {
    const double begin = stream.now();
    call();
    seconds.push_back(stream.now() - begin);
  }
  return seconds;
}

}  // namespace

double median_seconds(Stream& stream, double budget, const std::function<void()>& call) {
  constexpr int kWarmUps = 2, kFewest = 5, kMost = 200;
  constexpr double kShortest = 2e-4;
  sample(stream, kWarmUps, call);
  const double once = std::max(sample(stream, 1, call).front(), 1e-7);
  const int calls = std::max(static_cast<int>(std::ceil(kShortest / once)), 1);
  const int samples = static_cast<int>(std::clamp<double>(budget / (once * calls), kFewest, kMost));
  auto seconds = sample(stream, samples, [&] {
    for (int i = 0; i < calls; ++i) call();
  });
  std::ranges::nth_element(seconds, seconds.begin() + samples / 2);
  return seconds[static_cast<size_t>(samples / 2)] / calls;
}

}  // namespace witan

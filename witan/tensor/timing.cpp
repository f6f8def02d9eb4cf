#include "witan/tensor/timing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/base/numbers/median.h"
#include "witan/base/numbers/rng.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/observer.h"

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

namespace {

class HostTimestamps final : public Timestamps {
 public:
  void start(Queue&) override {}
  size_t mark(Queue&) override {
    timestamps_.push_back(steady_ns());
    return timestamps_.size() - 1;
  }
  std::vector<int64_t> read() override { return timestamps_; }
  void clear() override { timestamps_.clear(); }

 private:
  std::vector<int64_t> timestamps_;
};

}  // namespace

std::unique_ptr<Timestamps> make_timestamps(Device device) {
  if (device.kind == Device::Kind::cuda) return cuda::make_timestamps(device.index);
  return std::make_unique<HostTimestamps>();
}

void fill_normal(Stream& stream, const Tensor& to, uint64_t number, double scale) {
  constexpr int64_t kDrawn = 1 << 20;
  const Tensor flat = to.reshape({to.elements()});
  int64_t done = std::min(to.elements(), kDrawn);
  const Philox rng(1, number);
  dispatch_floating(to.dtype(), [&]<class T>() {
    std::vector<T> drawn(static_cast<size_t>(done));
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = T(rng.normal(i) * scale);
    stream.write(flat.narrow(0, 0, done), drawn.data());
  });
  for (int64_t more = 0; done < to.elements(); done += more) {
    more = std::min(done, to.elements() - done);
    stream.copy(flat.narrow(0, done, more), flat.narrow(0, 0, more));
  }
}

}  // namespace witan

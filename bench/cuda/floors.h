// Times of kernels on a GPU beside their floors: each operand read or written once at the bandwidth of a large copy, or
// the FLOPs at the rate of large products, whichever takes longer.
#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/common/launch.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan {

inline constexpr double kBandwidth = 4.3e12, kFlops = 790e12;  // of a large copy and of large products on an H200

class FloorBench {
 public:
  // Runs the cases whose lines contain `wanted`.
  FloorBench(Stream& stream, std::string_view wanted) : stream_(stream), wanted_(wanted) {}

 protected:
  Tensor normal(const Shape& shape) {
    const Tensor out = stream_.empty(shape, DType::bf16);
    fill_normal(stream_, out, ++seed_);
    return out;
  }
  Tensor equal(const Shape& shape, float value) {
    const Tensor out = stream_.empty(shape, DType::f32);
    const std::vector<float> all(static_cast<size_t>(out.elements()), value);
    stream_.write(out, all.data());
    return out;
  }
  void run(std::string_view name, double bytes, double flops, const std::function<void()>& call) {
    const std::string line = cat(name, ", ", of_);
    if (line.find(wanted_) == std::string::npos) return;
    const double floor = std::max(bytes / kBandwidth, flops / kFlops), seconds = median_seconds(stream_, 0.3, call);
    std::printf("%-44s %9.1f us   floor %8.1f us, %3.0f %%\n", line.c_str(), seconds * 1e6, floor * 1e6,
                100 * floor / seconds);
    std::fflush(stdout);
  }

  Stream& stream_;
  std::string of_;  // the shape of the present cases

 private:
  std::string_view wanted_;
  uint64_t seed_ = 0;
};

// The main of a bench of GPU kernels, whose cases body(stream, wanted) runs.
inline int run_floor_bench(int count, char** words,
                           const std::function<void(Stream& stream, std::string_view wanted)>& body) {
  if (witan::cuda::devices() == 0) {
    std::printf("%s\n", witan::cuda::why_none().c_str());
    return 0;
  }
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{64} << 30), pool);
  std::printf("%s\n", cuda::properties(0).name.c_str());
  body(stream, count > 1 ? words[1] : "");
  return 0;
}

}  // namespace witan

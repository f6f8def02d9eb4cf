#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/norm/norm.h"
#include "witan/planner/speeds/gpu_speeds.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/timing.h"

namespace witan {
namespace {

class Meter {
 public:
  Meter(Stream& stream, const GpuSpeeds& typical, DType dtype, const MeasuredSizes& sizes)
      : stream_(stream), speeds_(typical), dtype_(dtype), sizes_(sizes) {}

  GpuSpeeds measure() {
    draw_values();
    measure_products();
    measure_attention();
    measure_groups();
    measure_memory();
    return speeds_;
  }

 private:
  // The median time of a call, and the kind and cost that it records.
  struct Timed {
    double seconds = 0;
    CallKind kind;
    Cost cost;
  };
  Timed time(const std::function<void()>& work) const {
    CallCosts calls;
    stream_.record_calls(&calls);
    work();  // warms up libraries outside the recording
    stream_.record_calls(nullptr);
    constexpr int kCalls = 8;  // calls per graph, whose launch costs as much as a small kernel
    const auto several = [&] {
      for (int i = 0; i < kCalls; ++i) work();
    };
    std::unique_ptr<Graph> graph;
    if (stream_.queue()->records()) graph = record(*stream_.queue(), several);
    const double seconds = median_seconds(stream_, sizes_.seconds, [&] { graph ? graph->launch() : several(); });
    return {seconds / kCalls, calls.begin()->first, calls.begin()->second};
  }

  // Draws the operands of all calls once: enough for the largest product, the norms and the groups.
  void draw_values() {
    const int64_t side = sizes_.sides.back(), width = group_width();
    const int64_t most =
        std::max({2 * side * side, 5 * sizes_.tokens * kWidth, kGroups * width * (width + sizes_.group_rows.back())});
    values_ = stream_.empty({most}, dtype_);
    fill_normal(stream_, values_, 1, 1);
  }
  // Takes some of the drawn values. Calls only read them, so that overlaps do no harm.
  Tensor normal(const Shape& shape) {
    constexpr int64_t kAligned = 256;
    const int64_t elements = shape.elements();
    if (taken_ + elements > values_.elements()) taken_ = 0;
    const Tensor some = values_.narrow(0, taken_, elements).reshape(shape);
    taken_ += (elements + kAligned - 1) / kAligned * kAligned;
    return some;
  }
  int64_t group_width() const { return std::min(kWidth, sizes_.tokens); }

  // FLOP/s without the fixed cost of such a call, which is taken as at most half of the measured time.
  double rate(const Timed& timed) const {
    const auto found = speeds_.kernels.find(timed.kind.name);
    const double fixed = found == speeds_.kernels.end() ? 0 : std::min(found->second.call, timed.seconds / 2);
    return timed.cost.flops / (timed.seconds - fixed);
  }

  static std::vector<double> axis(const std::vector<int64_t>& sizes) { return {sizes.begin(), sizes.end()}; }

  // Assumes that the fixed cost of a call is at most half of the time of the smallest product.
  void measure_products() {
    const auto product = [&](int64_t m, int64_t n, int64_t k) {
      const Tensor a = normal({m, k}), b = normal({n, k}), c = stream_.empty({m, n}, dtype_);
      return time(
          [&] { kernels::gemm(stream_, c, Write::overwrite, a, kernels::Transpose::no, b, kernels::Transpose::yes); });
    };
    const int64_t least = sizes_.sides.front();
    const Timed smallest = product(least, least, least);
    speeds_.kernels["gemm"].call = std::min(smallest.seconds / 2, speeds_.kernels["gemm"].call);
    RateTable table{{axis(sizes_.sides), axis(sizes_.sides), axis(sizes_.sides)}, {}};
    double fastest = 0;
    std::vector<double*> unmeasured;
    table.values.reserve(sizes_.sides.size() * sizes_.sides.size() * sizes_.sides.size());
    for (const int64_t m : sizes_.sides)
      for (const int64_t n : sizes_.sides)
        for (const int64_t k : sizes_.sides) {
          double& value = table.values.emplace_back(0);
          if (2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) > sizes_.most_flops) {
            unmeasured.push_back(&value);
          } else {
            value = rate(product(m, n, k));
            fastest = std::max(fastest, value);
          }
        }
    for (double* value : unmeasured) *value = fastest;
    speeds_.products = table;
    speeds_.product_flops = fastest;
  }

  void measure_attention() {
    constexpr int64_t kHeads = 4, kSize = 128;
    RateTable forward{{axis(sizes_.keys)}, {}}, backward = forward;
    for (const int64_t length : sizes_.keys) {
      const Shape queries{std::max<int64_t>(sizes_.tokens / length, 1), length, kHeads, kSize},
          keys = queries.with(2, 1);
      const kernels::AttentionInputs in{.q = normal(queries),
                                        .k = normal(keys),
                                        .v = normal(keys),
                                        .sequence_ids = {},
                                        .scale = 1 / std::sqrt(static_cast<double>(kSize)),
                                        .window = 0};
      const Tensor y = stream_.empty(queries, dtype_), dy = normal(queries),
                   lse = stream_.empty({queries[0], kHeads, length}, accumulator(dtype_));
      const kernels::AttentionGradients to{stream_.empty(queries, dtype_), stream_.empty(keys, dtype_),
                                           stream_.empty(keys, dtype_)};
      forward.values.push_back(rate(time([&] { kernels::attention_forward(stream_, y, lse, in); })));
      backward.values.push_back(rate(time([&] { kernels::attention_backward(stream_, to, dy, y, lse, in); })));
    }
    speeds_.attention_forward = forward;
    speeds_.attention_backward = backward;
  }

  void measure_groups() {
    const int64_t width = group_width();
    RateTable table{{axis(sizes_.group_rows)}, {}};
    const Tensor w = normal({kGroups, width, width});
    for (const int64_t rows : sizes_.group_rows) {
      std::vector<int64_t> begins, counts(kGroups, rows);
      for (int64_t group = 0; group < kGroups; ++group) begins.push_back(group * rows);
      RowGroups groups{stream_.empty({kGroups}, DType::i64), stream_.empty({kGroups}, DType::i64)};
      stream_.write(groups.begin, begins.data());
      stream_.write(groups.count, counts.data());
      const Tensor x = normal({kGroups * rows, width}), y = stream_.empty({kGroups * rows, width}, dtype_);
      table.values.push_back(rate(time([&] { kernels::grouped_gemm_forward(stream_, y, x, groups, w, {}); })));
    }
    speeds_.grouped = table;
  }

  // Measures a memory-bound kernel at a size larger than the caches and at one that takes hardly any time: two sizes
  // for two unknowns.
  void measure_memory() {
    const auto norm = [&](int64_t rows) {
      const Tensor x = normal({rows, kWidth}), y = stream_.empty({rows, kWidth}, dtype_), w = normal({kWidth}),
                   r = stream_.empty({rows}, accumulator(dtype_));
      return time([&] { kernels::rmsnorm_forward(stream_, y, r, x, w, 1e-5); });
    };
    const Timed small = norm(std::max<int64_t>(sizes_.tokens / 64, 1)), large = norm(4 * sizes_.tokens);
    const double rate = (large.cost.bytes - small.cost.bytes) / std::max(large.seconds - small.seconds, 1e-9);
    const double before = speeds_.kernels[""].bytes, call = small.seconds - small.cost.bytes / rate;
    for (auto& [name, speed] : speeds_.kernels)
      if (before > 0)
        speed.bytes *= rate / before;  // others are assumed to move memory as well as this one, as they usually do
    speeds_.kernels[""] = {std::max(call, 0.0), 0, rate};
  }

  static constexpr int64_t kGroups = 8, kWidth = 2048;

  Stream& stream_;
  GpuSpeeds speeds_;
  const DType dtype_;
  const MeasuredSizes sizes_;
  Tensor values_;
  int64_t taken_ = 0;  // values taken so far
};

}  // namespace

int64_t MeasuredSizes::arena_bytes() {
  return (int64_t{3} << 30) + Stream::kScratchBytes;
}

GpuSpeeds measure_speeds(Stream& stream, const GpuSpeeds& typical, DType dtype, const MeasuredSizes& sizes) {
  return Meter(stream, typical, dtype, sizes).measure();
}

}  // namespace witan

#include "witan/planner/speeds/gpu_speeds.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <string_view>

#include "witan/planner/speeds/cluster.h"

namespace witan {
namespace {

// The speed of this name, else the default, else zero cost.
template <class Speed>
const Speed& speed_of(const std::map<std::string, Speed>& speeds, const std::string& name) {
  static const Speed kFree;
  auto found = speeds.find(name);
  if (found == speeds.end()) found = speeds.find("");
  return found == speeds.end() ? kFree : found->second;
}

// Kernels that move tokens between ranks are recorded as a kernel and as an exchange; only the exchange, which limits
// them, is charged.
bool is_exchange(std::string_view name) {
  return name == "push_rows" || name == "pull_rows" || name == "place_rows";
}

// The share of cuDNN's rate that our own kernels reach on their slow path (kernels/attention/attention_path.h).
// Attention within documents has fewer pairs than a call is charged for, which roughly compensates for the slower
// kernels.
double share_of_own_attention(std::string_view name) {
  if (name.find(':') == name.npos || name.ends_with(":documents")) return 1;
  return name.starts_with("attention_forward") ? 0.18 : 0.14;
}

double at_least_one(int64_t size) {
  return static_cast<double>(std::max<int64_t>(size, 1));
}

bool is_rate(double value) {
  return std::isfinite(value) && value >= 0;
}

}  // namespace

double tiled_rate(const CallShape& shape, double multiprocessors, double flops) {
  constexpr double kRows = 128, kColumns = 256;
  constexpr double kSteps = 64;   // filling a tile's buffers and storing its sums takes as long as this many steps
  constexpr double kLong = 1024;  // the number of steps that justifies a multiprocessor of its own
  const double K = at_least_one(shape.k), all = 2 * at_least_one(shape.m) * at_least_one(shape.n) * K;
  const double tiles = std::ceil(at_least_one(shape.m) / kRows) * std::ceil(at_least_one(shape.n) / kColumns);
  const double divided = std::clamp(std::floor(multiprocessors / tiles), 1.0, std::max(std::floor(K / kLong), 1.0));
  const double waves = std::ceil(tiles * divided / multiprocessors);
  const double of_a_wave = 2 * kRows * kColumns * (K / divided + kSteps) * multiprocessors;
  return flops * all / (waves * of_a_wave);
}

double GpuSpeeds::kernel_seconds(const CallKind& kind, const Cost& cost) const {
  if (is_exchange(kind.name)) return 0;
  const std::string name =
      kind.name.substr(0, kind.name.find(':'));  // "attention_forward:dropout" is attention_forward
  const double share = share_of_own_attention(kind.name);
  const KernelSpeed& speed = speed_of(kernels, name);
  const CallShape& shape = kind.shape;
  double flops = speed.flops;
  double bytes = speed.bytes;
  if (kind.name == "gemm" && shape.m > 0 && !products.empty()) {
    flops = products.of({at_least_one(shape.m), at_least_one(shape.n), at_least_one(shape.k)});
    bytes = 0;  // the measured rate includes them
  } else if (kind.name == "gemm" && shape.m > 0 && product_flops > 0) {
    flops = tiled_rate(shape, multiprocessors, product_flops);
  } else if (kind.name.starts_with("grouped_") && shape.m > 0 && !grouped.empty()) {
    flops = grouped.of({at_least_one(shape.m / std::max<int64_t>(shape.batch, 1))});
  } else if (name == "attention_forward" && shape.n > 0 && !attention_forward.empty()) {
    flops = share * attention_forward.of({at_least_one(shape.n)});
  } else if (name == "attention_backward" && shape.n > 0 && !attention_backward.empty()) {
    flops = share * attention_backward.of({at_least_one(shape.n)});
  }
  const double of_flops = flops > 0 ? cost.flops / flops : 0, of_bytes = bytes > 0 ? cost.bytes / bytes : 0;
  return cost.calls * speed.call + std::max(of_flops, of_bytes);
}

const ExchangeSpeed& GpuSpeeds::exchange(const std::string& operation) const {
  return speed_of(exchanges, operation);
}

bool GpuSpeeds::valid() const {
  const auto table = [](const RateTable& of, size_t axes) {
    return of.empty() || (of.valid() && of.axes.size() == axes);
  };
  return std::ranges::all_of(kernels,
                             [](const auto& one) {
                               const KernelSpeed& speed = one.second;
                               return is_rate(speed.call) && is_rate(speed.flops) && is_rate(speed.bytes);
                             }) &&
         std::ranges::all_of(exchanges,
                             [](const auto& one) {
                               const ExchangeSpeed& speed = one.second;
                               return is_rate(speed.call) && is_rate(speed.rank) && is_rate(speed.bytes);
                             }) &&
         table(products, 3) && table(grouped, 1) && table(attention_forward, 1) && table(attention_backward, 1) &&
         is_rate(multiprocessors) && is_rate(product_flops) && is_rate(beside);
}

// Fitted to the steps that tests/planner/time/reference_layouts_test.cpp marks as such, starting from measurements of
// single kernels in docs/performance-log.md: products of a dense step at 668 to 739 TFLOP/s of 989; attention's forward
// at 430 TFLOP/s and its backward in 279 us at 2048 positions, and calls of 256 to 512 positions in context
// parallelism; groups of 256, 1024 and 4096 rows; AdamW at 3.97 of 4.8 TB/s; the router's wide products in 20 to 27 us;
// exchanges of 16 MB through peers' memory in 42 us, gathers of 8.4 MB at 270 and sums at 300 GB/s; NCCL at 285 to 340
// of 450 GB/s.
GpuSpeeds typical_speeds(const GpuModel& gpu, int64_t value_bytes) {
  constexpr double kMicro = 1e-6, kTera = 1e12, kBf16 = 989 * kTera;  // of the measured GPUs
  const double sheet = value_bytes == 2 ? gpu.bf16_flops : gpu.f32_flops, scale = sheet / kBf16;
  const auto rates = [&](const std::vector<double>& sizes, std::vector<double> tera) {
    for (double& rate : tera) rate *= scale * kTera;
    return RateTable{{sizes}, std::move(tera)};
  };
  const auto memory = [&](double call, double share) {
    return KernelSpeed{call * kMicro, 0, share * gpu.memory_bytes_s};
  };
  GpuSpeeds speeds;
  speeds.product_flops = 0.76 * sheet;
  speeds.multiprocessors = gpu.multiprocessors;
  speeds.kernels = {{"", memory(3, 0.82)},
                    {"gemm", memory(2.5, 0.82)},
                    {"attention_forward", memory(9, 0.82)},
                    {"attention_backward", memory(23, 0.82)},
                    {"adamw_all", memory(3, 0.83)},
                    {"square_sums_all", memory(3, 0.86)},
                    {"block_square_sums", memory(3, 0.86)},
                    {"cross_entropy_fused", memory(3, 0.86)}};
  // Each wide product is three 16-bit products.
  for (const char* wide : {"wide_linear", "wide_linear_backward_input", "wide_linear_backward_weight"})
    speeds.kernels[wide] = {18 * kMicro, 0.69 / 3 * sheet, 0.82 * gpu.memory_bytes_s};
  // The gated delta rule with decays of channels.
  for (const auto& [rule, share] : {std::pair("channel_delta_forward", 0.054), {"channel_delta_backward", 0.047}})
    speeds.kernels[rule] = {3 * kMicro, share * sheet, 0.82 * gpu.memory_bytes_s};
  for (const char* grouped : {"grouped_gemm_forward", "grouped_swiglu_forward", "grouped_gemm_backward_input",
                              "grouped_swiglu_backward", "grouped_gemm_backward_weight"})
    speeds.kernels[grouped] = memory(6, 0.82);
  // Other products have a rate alone: 8-bit ones at 1,118 and 875 TFLOP/s, Muon's iterations at the rates of its step
  // of the MoE reference.
  for (const auto& [product, share] : {std::pair("fp8_product", 1.13),
                                       {"fp8_weight_gradient", 0.88},
                                       {"block_columns_product", 0.5},
                                       {"block_rows_product", 0.5},
                                       {"gram_newton_schulz", 0.34},
                                       {"batched_gemm", 0.6}})
    speeds.kernels[product] = {6 * kMicro, share * sheet, 0.82 * gpu.memory_bytes_s};
  speeds.grouped = rates({256, 1024, 4096}, {340, 440, 600});
  const std::vector<double> keys = {256, 512, 1024, 2048, 4096, 8192};
  speeds.attention_forward = rates(keys, {213, 299, 375, 430, 464, 483});
  speeds.attention_backward = rates(keys, {158, 223, 279, 320, 345, 359});

  const auto exchange = [&](double call, double rank, double share) {
    return ExchangeSpeed{call * kMicro, rank * kMicro, share * gpu.link_bytes_s};
  };
  speeds.exchanges = {{"", exchange(24, 2, 0.7)},
                      {"send", exchange(27, 0, 0.68)},
                      {"gather_parts", exchange(4.5, 0, 0.74)},
                      {"sum_parts", exchange(4.5, 0, 0.74)},
                      {"exchange_pieces", exchange(4.5, 0, 0.74)}};
  for (const char* rows : {"place_rows", "push_rows", "pull_rows"}) speeds.exchanges[rows] = exchange(9, 0, 0.74);
  speeds.beside = 0.6;
  return speeds;
}

namespace {

constexpr size_t kMostValues = 4096;

bool is_size(double value) {
  return std::isfinite(value) && value > 0;
}

// The position of a size on an axis: between point `index` and the next one, at a share of the distance.
struct Place {
  size_t index = 0;
  double share = 0;
};

Place place_on(const std::vector<double>& axis, double size) {
  if (size <= axis.front() || axis.size() == 1) return {0, 0};
  if (size >= axis.back()) return {axis.size() - 2, 1};
  const auto next = std::ranges::upper_bound(axis, size);
  const auto index = static_cast<size_t>(next - axis.begin()) - 1;
  return {index, std::log(size / axis[index]) / std::log(*next / axis[index])};
}

}  // namespace

bool RateTable::valid() const {
  size_t points = 1;
  for (const auto& axis : axes) {
    if (axis.empty() || axis.size() > kMostValues || !std::ranges::all_of(axis, is_size)) return false;
    if (std::ranges::adjacent_find(axis, [](double a, double b) { return a >= b; }) != axis.end()) return false;
    points *= axis.size();
    if (points > kMostValues) return false;
  }
  return !axes.empty() && values.size() == points && std::ranges::all_of(values, is_size);
}

double RateTable::of(const std::vector<double>& at) const {
  assert(at.size() == axes.size() && !empty());
  std::vector<Place> places;
  for (size_t axis = 0; axis < axes.size(); ++axis) places.push_back(place_on(axes[axis], at[axis]));
  double sum = 0;
  for (size_t corner = 0; corner < size_t{1} << axes.size(); ++corner) {
    size_t index = 0;
    double weight = 1;
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      const bool upper = (corner >> axis & 1) != 0;
      weight *= upper ? places[axis].share : 1 - places[axis].share;
      index = index * axes[axis].size() + places[axis].index + (upper ? 1 : 0);
      if (weight == 0) break;  // the point may lie beyond the axis
    }
    if (weight > 0) sum += weight * std::log(values[index]);
  }
  return std::exp(sum);
}

}  // namespace witan

#include "witan/planner/speeds/cpu_speeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace witan {
namespace {

constexpr size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

// The terms of a call's time: the call itself, its FLOPs, and what it moves.
Terms terms_of(const TimedCalls& timed) {
  const double calls = std::max(timed.cost.calls, 1.0);
  return {1, timed.cost.flops / calls, timed.moved / calls};
}

// Solves the least squares of rows of `terms` against ones for the terms in `chosen`, by elimination in the normal
// equations; the others stay 0. Returns false if the rows do not determine the chosen terms.
bool solve(const std::vector<Terms>& rows, const std::vector<double>& weights, const std::vector<size_t>& chosen,
           Terms& solution) {
  const size_t n = chosen.size();
  std::array<std::array<double, kTerms + 1>, kTerms> normal{};
  for (size_t row = 0; row < rows.size(); ++row)
    for (size_t i = 0; i < n; ++i) {
      const double term = weights[row] * rows[row][chosen[i]];
      for (size_t j = 0; j < n; ++j) normal[i][j] += term * rows[row][chosen[j]];
      normal[i][n] += term;
    }
  solution = {};
  for (size_t i = 0; i < n; ++i) {
    const double diagonal = normal[i][i];
    if (!(diagonal > 1e-9)) return false;  // columns are scaled to at most 1
    for (size_t other = 0; other < n; ++other) {
      if (other == i) continue;
      const double factor = normal[other][i] / diagonal;
      for (size_t j = i; j <= n; ++j) normal[other][j] -= factor * normal[i][j];
    }
  }
  for (size_t i = 0; i < n; ++i) solution[chosen[i]] = normal[i][n] / normal[i][i];
  return true;
}

bool is_time(double value) {
  return std::isfinite(value) && value >= 0;
}

}  // namespace

double moved_by(const std::string& kernel, const CallShape& shape, const Cost& cost) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0) return cost.bytes;
  const bool grouped = kernel.starts_with("grouped_");  // m counts the rows of all groups
  const int64_t rows = std::max<int64_t>(grouped ? shape.m / std::max<int64_t>(shape.batch, 1) : shape.m, 1);
  return cost.flops / static_cast<double>(std::min({rows, shape.n, shape.k}));
}

CallSpeed fit_speed(const std::vector<TimedCalls>& calls) {
  std::vector<Terms> rows;
  std::vector<double> weights;
  for (const TimedCalls& timed : calls) {
    if (!(timed.cost.seconds > 0)) continue;
    Terms row = terms_of(timed);
    for (double& term : row) term *= std::max(timed.cost.calls, 1.0) / timed.cost.seconds;
    rows.push_back(row);
    weights.push_back(timed.weight);
  }
  Terms scale{};
  for (const Terms& row : rows)
    for (size_t i = 0; i < kTerms; ++i) scale[i] = std::max(scale[i], row[i]);
  for (Terms& row : rows)
    for (size_t i = 0; i < kTerms; ++i)
      if (scale[i] > 0) row[i] /= scale[i];
  // Three terms have seven non-empty subsets: the solution is the best one without a negative time.
  Terms best{};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned set = 1; set < 1U << kTerms; ++set) {
    std::vector<size_t> chosen;
    for (size_t i = 0; i < kTerms; ++i)
      if ((set >> i & 1U) != 0) chosen.push_back(i);
    Terms solution{};
    if (!solve(rows, weights, chosen, solution) || std::ranges::any_of(solution, [](double v) { return v < 0; }))
      continue;
    double error = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      double off = -1;
      for (size_t i = 0; i < kTerms; ++i) off += rows[row][i] * solution[i];
      error += weights[row] * off * off;
    }
    if (error < least * (1 - 1e-9)) {
      least = error;
      best = solution;
    }
  }
  for (size_t i = 0; i < kTerms; ++i)
    if (scale[i] > 0) best[i] /= scale[i];
  return {best[0], best[1], best[2]};
}

std::optional<double> CpuSpeeds::kernel_seconds(const CallKind& kind, const Cost& cost) const {
  auto found = kernels.find(kind.name);
  if (found == kernels.end()) found = kernels.find("");
  if (found == kernels.end()) return std::nullopt;
  const CallSpeed& speed = found->second;
  return std::max(cost.calls, 1.0) * speed.call + cost.flops * speed.flop +
         moved_by(kind.name, kind.shape, cost) * speed.moved;
}

CpuSpeeds typical_cpu_speeds(double flops, double copy_bytes, int threads) {
  constexpr double kProducts = 0.8, kAttention = 0.66;  // shares of the peak FLOP/s
  constexpr double kMoved = 0.6,
                   kAttentionMoved =
                       0.25;  // shares of the copy bytes/s: for values moved by products, and by other kernels
  constexpr double kAlone = 1e-6,
                   kTogether = 1e-5;  // seconds per call: on one thread, and on several that must be woken
  constexpr double kExchange = 1e-5, kBetween = 2e-6;
  const double call = threads > 1 ? kTogether : kAlone;
  CpuSpeeds speeds;
  speeds.kernels[""] = {call, 1 / (kProducts * flops), 1 / (kMoved * copy_bytes)};
  for (const char* attention : {"attention_forward", "attention_backward"})
    speeds.kernels[attention] = {10 * kAlone + call, 1 / (kAttention * flops), 1 / (kAttentionMoved * copy_bytes)};
  speeds.exchange_call = kExchange;
  speeds.between_call = kBetween;
  return speeds;
}

bool CpuSpeeds::valid() const {
  return is_time(exchange_call) && is_time(between_call) && std::ranges::all_of(kernels, [](const auto& one) {
           const CallSpeed& speed = one.second;
           return is_time(speed.call) && is_time(speed.flop) && is_time(speed.moved);
         });
}

}  // namespace witan

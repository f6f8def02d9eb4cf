// The published dMoE equivalence (MegaBlocks' layer) in plain code: 8 experts, top-2, GLU with an exact GELU, no bias,
// weights normalised over the chosen experts. Weights are uniform(-1, 1), except N(0, 0.02) for down projections. A
// loop over tokens and their experts in float64 computes the output, the gradients of y.sum() and an SGD step with lr
// 0.1.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/rank.h"

namespace witan::testing::dmoe {

inline constexpr int64_t D = 256, F = 256, E = 8, K = 2, T = 6;  // tokens of one rank: x [2, 3, 256]
inline constexpr size_t kSequences = 2;                          // each has T / 2 tokens
inline constexpr double kRate = 0.1;

struct Variant {
  bool geglu = true;           // else SwiGLU
  double capacity_factor = 0;  // 0: dropless
  std::string policy = "probs";

  int64_t capacity() const {  // for a rank's T tokens
    if (capacity_factor == 0) return T;
    return static_cast<int64_t>(std::ceil(static_cast<double>(T * K) / static_cast<double>(E) * capacity_factor));
  }
};

// Global weights, and the tokens of all data-parallel ranks, rounded to the dtype of the layer under test.
struct Problem {
  std::vector<double> router, gate_up, down;  // [E, D], [E, 2F, D], [E, D, F]
  std::vector<double> x;                      // [ranks T, D]
};

inline std::vector<double> random(const std::string& name, int64_t n, DType dtype,
                                  const std::function<double(double)>& shape) {
  const Philox rng(11, Philox::stream_of(name));
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) {
    double value = 0;
    if (shape)
      value = shape(rng.uniform(static_cast<uint64_t>(i)));
    else
      value = rng.normal(static_cast<uint64_t>(i));
    out.push_back(dtype == DType::bf16 ? static_cast<double>(float(bf16(value))) : value);
  }
  return out;
}

inline Problem make_problem(int ranks, DType dtype) {
  const auto uniform = [](double u) { return 2 * u - 1; };
  Problem p{random("router", E * D, dtype, uniform), random("gate_up", E * 2 * F * D, dtype, uniform),
            random("down", E * D * F, DType::f64, {}), random("x", ranks * T * D, dtype, {})};
  for (double& w : p.down) w = dtype == DType::bf16 ? static_cast<double>(float(bf16(0.02 * w))) : 0.02 * w;
  return p;
}

inline double dot(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}
inline void add_scaled(double* to, double factor, const double* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// A token's experts and weights, and which experts have capacity for it.
struct Choice {
  std::array<int64_t, K> expert{};
  std::array<double, K> weight{};
  std::array<bool, K> kept{};
};

// The layer in plain code: a loop over tokens and their experts. forward() returns y [tokens, D]; with `gradients`, it
// also accumulates the gradients of y.sum().
class PlainLayer {
 public:
  PlainLayer(Problem problem, Variant variant) : p_(std::move(problem)), variant_(std::move(variant)) {}
  const Problem& weights() const { return p_; }

  std::vector<double> forward(Problem* gradients = nullptr) const {
    std::vector<double> y(p_.x.size());
    for (size_t first = 0; first < p_.x.size(); first += T * D) {  // a rank's tokens, among which capacity is counted
      std::vector<Choice> choices;
      for (size_t t = 0; t < T; ++t) choices.push_back(choose(&p_.x[first + t * D]));
      drop(choices);
      for (size_t t = 0; t < T; ++t) token(choices[t], &p_.x[first + t * D], &y[first + t * D], gradients);
    }
    return y;
  }

  void step() {
    Problem g{std::vector<double>(p_.router.size()),
              std::vector<double>(p_.gate_up.size()),
              std::vector<double>(p_.down.size()),
              {}};
    forward(&g);
    for (const auto& [w, dw] : {std::pair{&p_.router, &g.router}, {&p_.gate_up, &g.gate_up}, {&p_.down, &g.down}})
      add_scaled(w->data(), -kRate, dw->data(), static_cast<int64_t>(w->size()));
  }

 private:
  Choice choose(const double* x) const {
    std::array<double, E> logits{};
    for (int64_t e = 0; e < E; ++e) logits[size_t(e)] = dot(&p_.router[size_t(e * D)], x, D);
    std::array<int64_t, E> order{};
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater{}, [&](int64_t e) { return logits[size_t(e)]; });
    Choice choice;
    double sum = 0;
    for (size_t k = 0; k < K; ++k) {
      choice.expert[k] = order[k];
      sum += choice.weight[k] = std::exp(logits[size_t(order[k])] - logits[size_t(order[0])]);
    }
    for (double& w : choice.weight) w /= sum;
    return choice;
  }

  // Every expert goes through its assignments, either the most probable or the first ones first.
  void drop(std::vector<Choice>& choices) const {
    for (int64_t e = 0; e < E; ++e) {
      std::vector<std::pair<double, bool*>> mine;
      for (size_t row = 0; row < T; ++row) {  // Megatron-LM's index of a token in [S, B]
        Choice& choice = choices[row % kSequences * (T / kSequences) + row / kSequences];
        for (size_t k = 0; k < K; ++k)
          if (choice.expert[k] == e) mine.emplace_back(choice.weight[k], &choice.kept[k]);
      }
      if (variant_.policy == "probs")
        std::ranges::stable_sort(mine, std::greater{}, [](const auto& one) { return one.first; });
      for (size_t i = 0; i < mine.size(); ++i) *mine[i].second = static_cast<int64_t>(i) < variant_.capacity();
    }
  }

  void token(const Choice& choice, const double* x, double* y, Problem* g) const {
    std::array<double, K> dweight{};
    double mean = 0;
    for (size_t k = 0; k < K; ++k) {
      if (choice.kept[k]) dweight[k] = expert(choice.expert[k], choice.weight[k], x, y, g);
      mean += choice.weight[k] * dweight[k];
    }
    if (!g) return;
    for (size_t k = 0; k < K; ++k)
      add_scaled(&g->router[size_t(choice.expert[k] * D)], choice.weight[k] * (dweight[k] - mean), x, D);
  }

  // The gate's activation and its derivative.
  std::pair<double, double> gate(double x) const {
    if (variant_.geglu) {
      const double cumulative = 0.5 * std::erfc(-x / std::numbers::sqrt2);
      return {x * cumulative, cumulative + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi)};
    }
    const double s = 1 / (1 + std::exp(-x));
    return {x * s, s + x * s * (1 - s)};
  }

  // y += weight * down (act(gate x) * (up x)); returns the derivative of sum(y) by the weight.
  double expert(int64_t e, double weight, const double* x, double* y, Problem* g) const {
    const double *first = &p_.gate_up[size_t(e * 2 * F * D)], *second = &p_.down[size_t(e * D * F)];
    std::vector<double> opened(F), slope(F), up(F), a(F), da(F);
    for (size_t f = 0; f < F; ++f) {
      std::tie(opened[f], slope[f]) = gate(dot(first + f * D, x, D));
      up[f] = dot(first + (F + f) * D, x, D);
      a[f] = opened[f] * up[f];
    }
    double total = 0;
    for (int64_t d = 0; d < D; ++d) {
      const double out = dot(second + d * F, a.data(), F);
      y[d] += weight * out;
      total += out;
      add_scaled(da.data(), weight, second + d * F, F);
      if (g) add_scaled(&g->down[size_t((e * D + d) * F)], weight, a.data(), F);
    }
    if (!g) return total;
    double* dfirst = &g->gate_up[size_t(e * 2 * F * D)];
    for (size_t f = 0; f < F; ++f) {
      add_scaled(dfirst + f * D, da[f] * up[f] * slope[f], x, D);
      add_scaled(dfirst + (F + f) * D, da[f] * opened[f], x, D);
    }
    return total;
  }

  Problem p_;
  Variant variant_;
};

inline Tensor tensor_of(Rank& rank, const Shape& shape, DType dtype, const double* from) {
  const Tensor out = rank.stream.empty(shape, dtype);
  dispatch_floating(dtype, [&]<class T>() {
    for (int64_t i = 0; i < out.elements(); ++i) out.data<T>()[i] = T(from[i]);
  });
  return out;
}

inline double largest(const std::vector<double>& all) {
  double most = 0;
  for (const double value : all) most = std::max(most, std::abs(value));
  return most;
}

// Relative to the largest expected element: sums of 256 products of both signs lose that much.
inline ::testing::AssertionResult agree(const std::vector<double>& found, const std::vector<double>& expected,
                                        double tolerance) {
  return close(found, expected, tolerance * largest(expected), 0);
}

}  // namespace witan::testing::dmoe

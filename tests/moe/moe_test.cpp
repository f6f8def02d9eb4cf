// The published dMoE equivalence (MegaBlocks' layer): a loop over experts in plain code, and the expert-parallel layer
// on 1, 2 and 4 ranks, agree before and after a step of SGD. 8 experts, top-2, GLU with an exact GELU, no bias, weights
// normalised over the chosen; weights uniform(-1, 1), but N(0, 0.02) for the projections down.
#include "witan/moe/moe.h"

#include <numbers>
#include <tuple>

#include "moe/moe_support.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::close;
using testing::on_ranks;
using testing::Rank;
using testing::ThreadRank;
using testing::values;

constexpr int64_t D = 256, F = 256, E = 8, K = 2, T = 6;  // tokens of one rank: x [2, 3, 256]
constexpr double kRate = 0.1;

struct Variant {
  bool geglu = true;           // else SwiGLU
  double capacity_factor = 0;  // 0: dropless
  std::string policy = "probs";

  int64_t capacity() const {  // of the T tokens of a rank
    if (capacity_factor == 0) return T;
    return static_cast<int64_t>(std::ceil(static_cast<double>(T * K) / static_cast<double>(E) * capacity_factor));
  }
};

// Global weights, and the tokens of all ranks. Rounded to the dtype of the layer under test.
struct Problem {
  std::vector<double> router, gate_up, down;  // [E, D], [E, 2F, D], [E, D, F]
  std::vector<double> x;                      // [ranks T, D]
};

std::vector<double> random(const std::string& name, int64_t n, DType dtype,
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

Problem make_problem(int ranks, DType dtype) {
  const auto uniform = [](double u) { return 2 * u - 1; };
  Problem p{random("router", E * D, dtype, uniform), random("gate_up", E * 2 * F * D, dtype, uniform),
            random("down", E * D * F, DType::f64, {}), random("x", ranks * T * D, dtype, {})};
  for (double& w : p.down) w = dtype == DType::bf16 ? static_cast<double>(float(bf16(0.02 * w))) : 0.02 * w;
  return p;
}

double dot(const double* a, const double* b, int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}
void add_scaled(double* to, double factor, const double* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// Where a token goes, with which weights, and which of them its experts have room for.
struct Choice {
  std::array<int64_t, K> expert{};
  std::array<double, K> weight{};
  std::array<bool, K> kept{};
};

// The layer in plain code: a loop over tokens and their experts. forward() returns y [tokens, D]; with `gradients`, it
// adds those of y.sum() as well.
class PlainLayer {
 public:
  PlainLayer(Problem problem, Variant variant) : p_(std::move(problem)), variant_(std::move(variant)) {}
  const Problem& weights() const { return p_; }

  std::vector<double> forward(Problem* gradients = nullptr) const {
    std::vector<double> y(p_.x.size());
    for (size_t first = 0; first < p_.x.size(); first += T * D) {  // a rank's tokens: capacity is counted among them
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

  // Every expert goes through its assignments, the likeliest or the first of them first.
  void drop(std::vector<Choice>& choices) const {
    for (int64_t e = 0; e < E; ++e) {
      std::vector<std::pair<double, bool*>> mine;
      for (Choice& choice : choices)
        for (size_t k = 0; k < K; ++k)
          if (choice.expert[k] == e) mine.emplace_back(choice.weight[k], &choice.kept[k]);
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

Tensor tensor_of(Rank& rank, const Shape& shape, DType dtype, const double* from) {
  const Tensor out = rank.stream.empty(shape, dtype);
  dispatch_floating(dtype, [&]<class T>() {
    for (int64_t i = 0; i < out.elements(); ++i) out.data<T>()[i] = T(from[i]);
  });
  return out;
}

// What one rank saw: outputs and its parameters, before and after the step.
struct Seen {
  std::vector<double> before, after, router, gate_up, down;
};

class Layer {
 public:
  Layer(Rank& rank, Group& group, DType dtype, const Problem& p, const Variant& variant = {})
      : rank_(rank),
        group_(group),
        dtype_(dtype),
        moe_(builder(rank, group, dtype), config(variant), mlp(variant), D, group) {
    bind_gradients(rank.stream, moe_);
    const std::vector<double>* initial[] = {&p.router, &p.gate_up, &p.down};
    for (size_t i = 0; i < 3; ++i) {
      const Parameter& w = *moe_.parameters()[i];
      dispatch_floating(w.value().dtype(), [&]<class W>() {
        for (int64_t j = 0; j < w.elements(); ++j)
          w.value().data<W>()[j] = W((*initial[i])[size_t(w.region().global(j))]);
      });
    }
  }

  Seen run(const double* x) {
    Seen seen;
    seen.before = forward_and_step(x);
    Tape off(rank_.stream, Tape::Mode::off);
    seen.after = values(moe_.forward(off, off.constant(tensor_of(rank_, {2, 3, D}, dtype_, x)), false).y.value());
    const auto parameters = moe_.parameters();
    seen.router = values(parameters[0]->value());
    seen.gate_up = values(parameters[1]->value());
    seen.down = values(parameters[2]->value());
    return seen;
  }

 private:
  static Builder builder(Rank& rank, Group& group, DType dtype) {
    return {.stream = rank.stream, .dtype = dtype, .expert_ranks = group.size(), .expert_rank = group.rank()};
  }
  static MoeConfig config(const Variant& variant) {
    MoeConfig config;
    config.num_experts = E;
    config.moe_router_topk = K;
    config.moe_expert_capacity_factor = variant.capacity_factor;
    config.moe_token_drop_policy = variant.policy;
    return config;
  }
  static MlpConfig mlp(const Variant& variant) {
    MlpConfig config;
    config.ffn_hidden_size = F;
    config.swiglu = !variant.geglu;
    config.geglu = variant.geglu;
    return config;
  }

  std::vector<double> forward_and_step(const double* x) {
    Tape tape(rank_.stream);
    const Var y = moe_.forward(tape, tape.input(tensor_of(rank_, {2, 3, D}, dtype_, x)), false).y;
    tape.backward({{y, {}}});
    for (Parameter* w : moe_.parameters()) {
      if (!w->spec().expert) group_.all_reduce(rank_.stream, w->gradient());
      const auto gradient = values(w->gradient());
      dispatch_floating(w->value().dtype(), [&]<class W>() {
        W* value = w->value().data<W>();
        for (size_t i = 0; i < gradient.size(); ++i) value[i] = W(static_cast<double>(value[i]) - kRate * gradient[i]);
      });
    }
    return values(y.value());
  }

  Rank& rank_;
  Group& group_;
  DType dtype_;
  Moe moe_;
};

// All ranks' outputs one after the other, and the experts in the order of their ranks: global tensors.
Seen run_on(int ranks, DType dtype, const Problem& problem, const Variant& variant = {}) {
  std::vector<Seen> parts(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    Layer layer(rank, *group, dtype, problem, variant);
    parts[size_t(rank.rank)] = layer.run(&problem.x[size_t(rank.rank * T * D)]);
  });
  Seen all = parts[0];
  for (size_t r = 1; r < parts.size(); ++r) {
    EXPECT_EQ(parts[r].router, all.router) << "rank " << r;
    const auto append = [&](std::vector<double> Seen::*field) {
      (all.*field).insert((all.*field).end(), (parts[r].*field).begin(), (parts[r].*field).end());
    };
    for (const auto field : {&Seen::before, &Seen::after, &Seen::gate_up, &Seen::down}) append(field);
  }
  return all;
}

double largest(const std::vector<double>& all) {
  double most = 0;
  for (const double value : all) most = std::max(most, std::abs(value));
  return most;
}

// Tolerances are relative to the largest element: sums of 256 products of both signs lose that much.
void expect_equivalence(int ranks, DType dtype, double tolerance, const Variant& variant = {}) {
  SCOPED_TRACE(cat(dtype, " on ", ranks, " ranks"));
  const Problem problem = make_problem(ranks, dtype);
  const Seen seen = run_on(ranks, dtype, problem, variant);
  PlainLayer plain(problem, variant);
  const auto agrees = [&](const std::vector<double>& a, const std::vector<double>& b) {
    return close(a, b, tolerance * largest(b), 0);
  };
  EXPECT_TRUE(agrees(seen.before, plain.forward())) << "outputs before the step";
  plain.step();
  EXPECT_TRUE(agrees(seen.router, plain.weights().router)) << "router";
  EXPECT_TRUE(agrees(seen.gate_up, plain.weights().gate_up)) << "gate_up_proj";
  EXPECT_TRUE(agrees(seen.down, plain.weights().down)) << "down_proj";
  EXPECT_TRUE(agrees(seen.after, plain.forward())) << "outputs after the step";
}

TEST(Moe, EqualsALoopOverExpertsInFloat64) {
  for (const int ranks : {1, 2, 4}) expect_equivalence(ranks, DType::f64, 1e-11);
}

TEST(Moe, EqualsALoopOverExpertsInBfloat16) {
  for (const int ranks : {1, 2, 4}) expect_equivalence(ranks, DType::bf16, 2e-2);
}

TEST(Moe, EqualsALoopOverExpertsWithOtherGatesAndCapacities) {
  expect_equivalence(2, DType::f64, 1e-11, {.geglu = false});
  for (const std::string policy : {"probs", "position"})
    for (const int ranks : {1, 2, 4}) expect_equivalence(ranks, DType::f64, 1e-11, {true, 0.6, policy});
}

TEST(Moe, RanksChangeNoOutputBitBeforeTheStep) {
  const Problem problem = make_problem(2, DType::f32);
  const Seen apart = run_on(2, DType::f32, problem);
  std::vector<double> alone;
  for (int64_t r = 0; r < 2; ++r) {
    Rank rank;
    Alone group;
    Layer layer(rank, group, DType::f32, problem);
    const auto part = layer.run(&problem.x[size_t(r * T * D)]).before;
    alone.insert(alone.end(), part.begin(), part.end());
  }
  EXPECT_EQ(apart.before, alone);
}

TEST(Moe, TellsStatisticsOfTheWorldsExperts) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    MoeConfig config;
    MlpConfig mlp;
    mlp.ffn_hidden_size = 4;
    const Builder builder{.stream = rank.stream, .expert_ranks = 2, .expert_rank = rank.rank, .path = "moe"};
    Moe moe(builder, config, mlp, 6, *group);
    std::vector<std::string> names;
    for (const Parameter* parameter : moe.parameters()) names.push_back(parameter->name());
    EXPECT_EQ(names,
              (std::vector<std::string>{"moe.router.weight", "moe.experts.gate_up_proj", "moe.experts.down_proj"}));
    Tape tape(rank.stream);
    const MoeOutput out = moe.forward(tape, tape.input(rank.own_normal({3, 5, 6}, DType::f32, "x")), false);
    EXPECT_EQ(out.y.shape(), Shape({3, 5, 6}));
    const auto counts = out.expert_counts.to_vector<int64_t>();
    EXPECT_EQ(counts.size(), 8U);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 30);
    EXPECT_GE(out.balance_loss.value().data<float>()[0], 0.9F);
    EXPECT_GT(out.z_loss.value().data<float>()[0], 0.0F);
  });
}

}  // namespace
}  // namespace witan

// The dMoE equivalence of MegaBlocks and torchtitan users: a loop over experts in plain code, and the dropless layer on
// 1, 2 and 4 ranks, agree before and after a step of SGD.
#include "witan/moe/moe.h"

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

// The layer in plain code: a loop over tokens and their experts. forward() returns y [tokens, D]; with `gradients`, it
// adds those of y.sum() as well.
class PlainLayer {
 public:
  explicit PlainLayer(Problem problem) : p_(std::move(problem)) {}
  const Problem& weights() const { return p_; }

  std::vector<double> forward(Problem* gradients = nullptr) const {
    std::vector<double> y(p_.x.size());
    for (size_t t = 0; t < p_.x.size(); t += D) token(&p_.x[t], &y[t], gradients);
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
  void token(const double* x, double* y, Problem* g) const {
    std::array<double, E> logits{};
    for (int64_t e = 0; e < E; ++e) logits[size_t(e)] = dot(&p_.router[size_t(e * D)], x, D);
    std::array<int64_t, E> order{};
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater{}, [&](int64_t e) { return logits[size_t(e)]; });
    const double most = logits[size_t(order[0])];
    std::array<double, K> weight{}, dweight{};
    double sum = 0;
    for (size_t k = 0; k < K; ++k) sum += weight[k] = std::exp(logits[size_t(order[k])] - most);
    for (double& w : weight) w /= sum;
    double mean = 0;
    for (size_t k = 0; k < K; ++k) mean += weight[k] * (dweight[k] = expert(order[k], weight[k], x, y, g));
    if (!g) return;
    for (size_t k = 0; k < K; ++k) add_scaled(&g->router[size_t(order[k] * D)], weight[k] * (dweight[k] - mean), x, D);
  }

  // y += weight * down (silu(gate x) * (up x)); returns the derivative of sum(y) by the weight.
  double expert(int64_t e, double weight, const double* x, double* y, Problem* g) const {
    const double *first = &p_.gate_up[size_t(e * 2 * F * D)], *second = &p_.down[size_t(e * D * F)];
    std::vector<double> gate(F), up(F), a(F), da(F);
    for (int64_t f = 0; f < F; ++f) {
      gate[size_t(f)] = dot(first + f * D, x, D);
      up[size_t(f)] = dot(first + (F + f) * D, x, D);
      a[size_t(f)] = gate[size_t(f)] / (1 + std::exp(-gate[size_t(f)])) * up[size_t(f)];
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
    for (int64_t f = 0; f < F; ++f) {
      const double s = 1 / (1 + std::exp(-gate[size_t(f)])), silu = gate[size_t(f)] * s;
      add_scaled(dfirst + f * D, da[size_t(f)] * up[size_t(f)] * (s + silu * (1 - s)), x, D);
      add_scaled(dfirst + (F + f) * D, da[size_t(f)] * silu, x, D);
    }
    return total;
  }

  Problem p_;
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
  Layer(Rank& rank, Group& group, DType dtype, const Problem& p)
      : rank_(rank), group_(group), dtype_(dtype), moe_(builder(rank, group, dtype), config(), mlp(), D, group) {
    bind_gradients(rank.stream, moe_);
    const std::vector<double>* initial[] = {&p.router, &p.gate_up, &p.down};
    for (size_t i = 0; i < 3; ++i) {
      const Parameter& w = *moe_.parameters()[i];
      dispatch_floating(w.value().dtype(), [&]<class W>() {
        for (int64_t j = 0; j < w.elements(); ++j)
          w.value().data<W>()[j] = W((*initial[i])[size_t(w.first_element() + j)]);
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
  static MoeConfig config() {
    MoeConfig config;
    config.num_experts = E;
    config.moe_router_topk = K;
    return config;
  }
  static MlpConfig mlp() {
    MlpConfig config;
    config.ffn_hidden_size = F;
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
Seen run_on(int ranks, DType dtype, const Problem& problem) {
  std::vector<Seen> parts(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    Layer layer(rank, *group, dtype, problem);
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
void expect_equivalence(int ranks, DType dtype, double tolerance) {
  SCOPED_TRACE(cat(dtype, " on ", ranks, " ranks"));
  const Problem problem = make_problem(ranks, dtype);
  const Seen seen = run_on(ranks, dtype, problem);
  PlainLayer plain(problem);
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

// A loop over experts in plain code (support/dmoe.h) and the expert-parallel layer on 1, 2 and 4 ranks agree before and
// after a step of SGD.
#include "witan/moe/layer/moe.h"

#include <set>

#include "moe/moe_support.h"
#include "support/dmoe.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/router.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::on_ranks;
using testing::Rank;
using testing::ThreadRank;
using testing::values;
using testing::dmoe::agree;
using testing::dmoe::D;
using testing::dmoe::E;
using testing::dmoe::F;
using testing::dmoe::K;
using testing::dmoe::kRate;
using testing::dmoe::make_problem;
using testing::dmoe::PlainLayer;
using testing::dmoe::Problem;
using testing::dmoe::T;
using testing::dmoe::tensor_of;
using testing::dmoe::Variant;

// One rank's outputs, and its parameters before and after the step.
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

// Global tensors: all ranks' outputs, and the experts, concatenated in the order of ranks.
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

void expect_equivalence(int ranks, DType dtype, double tolerance, const Variant& variant = {}) {
  SCOPED_TRACE(cat(dtype, " on ", ranks, " ranks"));
  const Problem problem = make_problem(ranks, dtype);
  const Seen seen = run_on(ranks, dtype, problem, variant);
  PlainLayer plain(problem, variant);
  EXPECT_TRUE(agree(seen.before, plain.forward(), tolerance)) << "outputs before the step";
  plain.step();
  EXPECT_TRUE(agree(seen.router, plain.weights().router, tolerance)) << "router";
  EXPECT_TRUE(agree(seen.gate_up, plain.weights().gate_up, tolerance)) << "gate_up_proj";
  EXPECT_TRUE(agree(seen.down, plain.weights().down, tolerance)) << "down_proj";
  EXPECT_TRUE(agree(seen.after, plain.forward(), tolerance)) << "outputs after the step";
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

TEST(Moe, OutputsHaveTheSameBitsOnAnyNumberOfRanks) {
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

TEST(Moe, RecordsStatisticsOfAllRanksExperts) {
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
    const auto counts = out.record.value(kExpertCounts).to_vector<int64_t>();
    EXPECT_EQ(counts.size(), 8U);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 30);
    EXPECT_GE(out.record.value(kBalanceLoss).data<float>()[0], 0.9F);
    EXPECT_GT(out.record.value(kZLoss).data<float>()[0], 0.0F);
  });
}

// On a meta stream for a GPU, where a pass over memory costs as much as many kernel launches: the gradient of the
// layer's input is written by the experts, and the router's product accumulates into it.
TEST(Moe, RouterAccumulatesIntoTheExpertsGradient) {
  constexpr int64_t kWidth = 16;
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta, 0, Device::Kind::cuda}, Arena::meta(), pool);
  MetaGroup alone{1, 0, "expert"};
  MoeConfig config;
  config.num_experts = 8;
  MlpConfig mlp;
  mlp.ffn_hidden_size = 32;
  Moe moe({.stream = meta, .dtype = DType::bf16}, config, mlp, kWidth, alone);
  bind_gradients(meta, moe);
  CallCosts calls;
  meta.record_calls(&calls);
  Tape tape(meta);
  const Var x = tape.input(meta.empty({2, 4, kWidth}, DType::bf16));
  const Var y = moe.forward(tape, x, false).y;
  tape.backward({{y, meta.empty(y.shape(), DType::bf16)}});
  meta.record_calls(nullptr);
  std::set<std::string> names;
  for (const auto& [kind, cost] : calls) names.insert(kind.name);
  EXPECT_TRUE(names.contains("wide_linear_backward_input"));
  EXPECT_FALSE(names.contains("accumulate"));
  EXPECT_FALSE(names.contains("add"));
}

}  // namespace
}  // namespace witan

// The published dMoE equivalence in every published layout and some more: replicas, sharded optimizers and parameters,
// sharded experts, both together (where the published step failed, since one optimizer could not mix tensors of two
// meshes), and tensor parallelism. Gradients are reduced, and parameters updated and gathered, as in any run.
#include "support/dmoe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/thread_world.h"
#include "witan/moe/layer/moe.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/unit_store.h"

namespace witan {
namespace {

using testing::on_ranks;
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

struct Case {
  const char* mesh;
  const char* strategy = "auto";
};
constexpr const char* kFsdp = "optim_grads_params";
const std::vector<Case> kCases = {
    {"replicate=2"},
    {"shard=2"},
    {"shard=2", kFsdp},
    {"replicate=2,expert=2"},
    {"replicate=8,expert=8"},
    {"shard=4,expert=2"},  // the experts' optimizer is sharded over two ranks, all others over four
    {"shard=4,expert=2", kFsdp},
    {"replicate=2,shard=2,expert=2", kFsdp},
    {"tensor=2,expert_tensor=2"},
    {"tensor=2,expert=2,expert_tensor=1"},
    {"replicate=2,tensor=2,expert=2,expert_tensor=2"},
    {"shard=2,tensor=2,expert=2,expert_tensor=2"},
    {"shard=4,tensor=2,expert=2,expert_tensor=2", kFsdp},
};

ParallelConfig parallel_of(const Case& of) {
  ParallelConfig parallel;
  parallel.expert_model_parallel_size = 1;
  parallel.mesh = of.mesh;
  expand_mesh(parallel, {});
  parallel.sequence_parallel = parallel.tensor_model_parallel_size > 1;
  parallel.data_parallel_sharding_strategy = of.strategy;
  return parallel;
}

// A model of one block, which is the layer.
class OneLayer : public Module {
 public:
  OneLayer(const Builder& builder, const ModelAxes& axes)
      : Module(""), layer_(builder / "layers" / "0", moe(), mlp(), D, axes) {
    add_child(layer_);
  }
  Var forward(Tape& tape, const Var& x) {
    const ModuleScope scope(tape, *this);
    return layer_.forward(tape, x, false).y;
  }

 private:
  static MoeConfig moe() {
    MoeConfig config;
    config.num_experts = E;
    config.moe_router_topk = K;
    return config;
  }
  static MlpConfig mlp() {
    MlpConfig config;
    config.ffn_hidden_size = F;
    config.swiglu = false;
    config.geglu = true;
    return config;
  }

  Moe layer_;
};

Builder builder_of(Stream& stream, DType dtype, const ModelAxes& axes) {
  Builder builder{.stream = stream, .dtype = dtype};
  builder.expert_ranks = axes.expert->size();
  builder.expert_rank = axes.expert->rank();
  builder.expert_tensor_ranks = ModelAxes::size(axes.expert_tensor);
  builder.expert_tensor_rank = ModelAxes::rank(axes.expert_tensor);
  if (ModelAxes::size(axes.tensor) > 1) builder.tensor.emplace(*axes.tensor, Placement::shard(1));
  builder.values_later = axes.values_later;
  return builder;
}

OptimizerConfig plain_sgd() {
  OptimizerConfig config;
  config.optimizer = "sgd";
  config.sgd_momentum = config.weight_decay = 0;
  return config;
}

// The elements of a global tensor that one rank has.
struct Part {
  std::vector<int64_t> elements;
  std::vector<double> values;
};
struct Seen {
  Part before, after;              // outputs of the step's forward and of the next one
  std::vector<Part> weights = {};  // router, gate_up, down, after the step
};

// One rank of a layout.
class TrainedLayer {
 public:
  TrainedLayer(ThreadRank& rank, const ParallelConfig& parallel, DType dtype)
      : rank_(rank),
        dtype_(dtype),
        groups_(make_groups(rank.world, Layout(parallel, rank.size(), E), rank.rank)),
        axes_(groups_.model_axes(parallel)),
        model_(builder_of(rank.stream, dtype, axes_), axes_),
        parameters_(model_.parameters()),
        shard_plan_(parameters_, groups_.layout(), rank.rank),
        units_(rank.stream, {Unit{Unit::Kind::head, 0, "layer", 0, {&model_}, parameters_}}, shard_plan_, groups_, {}) {
  }

  void begin_with(const Problem& problem) {
    const std::vector<double>* initial[] = {&problem.router, &problem.gate_up, &problem.down};
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor kept = parameters_[i]->value_shard();
      dispatch_floating(kept.dtype(), [&]<class W>() {
        for (int64_t j = 0; j < kept.elements(); ++j)
          kept.data<W>()[j] =
              W((*initial[i])[size_t(parameters_[i]->region().global(parameters_[i]->shard_first() + j))]);
      });
    }
  }

  Seen run(const std::vector<double>& x) {
    Stream& stream = rank_.stream;
    GradientBuckets gradients(stream, parameters_, groups_, {.dtype = accumulator(dtype_)});
    const auto optimizer = make_optimizer(plain_sgd(), stream, shard_plan_.local_shards());
    StepState step(stream);
    step.set({kRate}, 1, 1);
    Seen seen;
    {
      Tape tape(stream);
      gradients.begin_micro_batch(0);
      const Var y = forward(tape, tape.input(own_tokens(x)));
      seen.before = of_own_tokens(values(y.value()));
      tape.backward({{y, {}}});
      gradients.finish_step();
    }
    optimizer->update(stream, step);
    units_.publish();  // values are gathered when they are used
    Tape off(stream, Tape::Mode::off);
    seen.after = of_own_tokens(values(forward(off, off.constant(own_tokens(x))).value()));
    const UnitReading reading(&units_, 0);
    for (const Parameter* parameter : parameters_) {
      Part& part = seen.weights.emplace_back();
      part.values = values(parameter->value());
      for (int64_t j = 0; j < parameter->elements(); ++j) part.elements.push_back(parameter->region().global(j));
    }
    return seen;
  }

 private:
  Var forward(Tape& tape, const Var& x) {
    const PassGuard pass(tape, &units_);
    const UnitGuard unit(tape, &units_, 0);
    return model_.forward(tape, x);
  }
  // Index of this rank's first token among the tokens of all ranks; tensor-parallel ranks may share tokens.
  int64_t first_token() const {
    return groups_.layout().data_rank(rank_.rank) * T + groups_.of(Axis::tensor).rank() * tokens();
  }
  int64_t tokens() const { return T / groups_.of(Axis::tensor).size(); }
  Tensor own_tokens(const std::vector<double>& x) {
    return tensor_of(rank_, {1, tokens(), D}, dtype_, &x[size_t(first_token() * D)]);
  }
  Part of_own_tokens(std::vector<double> y) const {
    Part part;
    part.elements.resize(y.size());
    std::iota(part.elements.begin(), part.elements.end(), first_token() * D);
    part.values = std::move(y);
    return part;
  }

  ThreadRank& rank_;
  DType dtype_;
  Groups groups_;
  ModelAxes axes_;
  OneLayer model_;
  std::vector<Parameter*> parameters_;
  ShardPlan shard_plan_;
  UnitStore units_;
};

// Joins the ranks' parts of a global tensor [elements]; replicas must be equal.
std::vector<double> joined(const std::vector<Seen>& ranks, size_t elements,
                           const std::function<const Part&(const Seen&)>& of) {
  std::vector<double> all(elements, std::nan(""));
  int64_t differ = 0;
  for (const Seen& rank : ranks) {
    const Part& part = of(rank);
    for (size_t i = 0; i < part.values.size(); ++i) {
      double& element = all.at(size_t(part.elements[i]));
      if (std::isnan(element)) element = part.values[i];
      if (element != part.values[i]) ++differ;
    }
  }
  EXPECT_EQ(differ, 0) << "elements differ between replicas";
  return all;
}

// The layer in plain code, on the tokens of this many ranks.
struct Expected {
  Expected(int data_ranks, DType dtype) : problem(make_problem(data_ranks, dtype)) {
    PlainLayer plain(problem, {});
    before = plain.forward();
    plain.step();
    weights = plain.weights();
    after = plain.forward();
  }
  Problem problem, weights;
  std::vector<double> before, after;
};

void expect_equivalence(const Case& of, DType dtype, double tolerance, const Expected& expected) {
  SCOPED_TRACE(cat(of.mesh, ", ", of.strategy, ", ", dtype));
  const ParallelConfig parallel = parallel_of(of);
  std::vector<Seen> seen(static_cast<size_t>(parallel.ranks));
  on_ranks(static_cast<int>(parallel.ranks), [&](ThreadRank& rank) {
    TrainedLayer layer(rank, parallel, dtype);
    layer.begin_with(expected.problem);
    seen[size_t(rank.rank)] = layer.run(expected.problem.x);
  });
  const auto agrees = [&](const char* what, const std::vector<double>& wanted,
                          const std::function<const Part&(const Seen&)>& part) {
    EXPECT_TRUE(agree(joined(seen, wanted.size(), part), wanted, tolerance)) << what;
  };
  const auto weight = [](size_t i) { return [i](const Seen& rank) -> const Part& { return rank.weights[i]; }; };
  agrees("outputs before the step", expected.before, [](const Seen& rank) -> const Part& { return rank.before; });
  agrees("router", expected.weights.router, weight(0));
  agrees("gate_up_proj", expected.weights.gate_up, weight(1));
  agrees("down_proj", expected.weights.down, weight(2));
  agrees("outputs after the step", expected.after, [](const Seen& rank) -> const Part& { return rank.after; });
}

void expect_equivalence_everywhere(DType dtype, double tolerance) {
  std::map<int, Expected> expected;
  for (const Case& of : kCases) {
    const auto data_ranks = static_cast<int>(parallel_of(of).data_ranks());
    expect_equivalence(of, dtype, tolerance, expected.try_emplace(data_ranks, data_ranks, dtype).first->second);
  }
}

TEST(Dmoe, EveryLayoutMatchesALoopOverExpertsInFloat64) {
  expect_equivalence_everywhere(DType::f64, 1e-11);
}

TEST(Dmoe, EveryLayoutMatchesALoopOverExpertsInBfloat16) {
  expect_equivalence_everywhere(DType::bf16, 2e-2);
}

}  // namespace
}  // namespace witan

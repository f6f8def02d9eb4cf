#include "witan/moe/layer/experts.h"

#include "moe/moe_support.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

using testing::Alone;
using testing::close;
using testing::filled;
using testing::gradcheck;
using testing::random_ids;
using testing::Rank;
using testing::routing_of;
using testing::values;

RowGroups groups_of(Rank& rank, const std::vector<int64_t>& counts) {
  std::vector<int64_t> begin(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begin.begin(), int64_t{0});
  const auto E = static_cast<int64_t>(counts.size());
  return {rank.tensor<int64_t>({E}, begin), rank.tensor<int64_t>({E}, counts)};
}

TEST(SequentialLinear, GradientsMatchDifferences) {
  Rank rank;
  for (const auto& counts : std::vector<std::vector<int64_t>>{{3, 0, 2}, {0, 5, 0}, {1}}) {
    const RowGroups groups = groups_of(rank, counts);
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    gradcheck(rank, "sequential_linear",
              [&](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::sequential_linear(tape, in[0], groups, in[1])};
              },
              {rank.normal({rows, 4}, DType::f64, "rows"), rank.normal({groups.experts(), 3, 4}, DType::f64, "w")});
  }
}

TEST(SequentialLinear, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const RowGroups groups = groups_of(rank, {1, 1});
  const auto said = [&](const Shape& rows, const Shape& w, DType dtype) {
    return test::message_of<ShapeError>([&] {
      ops::sequential_linear(tape, tape.input(rank.normal(rows, DType::f32, "rows")), groups,
                             tape.input(rank.normal(w, dtype, "w")));
    });
  };
  EXPECT_EQ(said({8}, {2, 3, 4}, DType::f32), "sequential_linear: rows must be [capacity, K], got [8]");
  EXPECT_EQ(said({2, 4}, {3, 3, 4}, DType::f32), "sequential_linear: w must be [E=2, N, K=4], got [3, 3, 4]");
  EXPECT_EQ(said({2, 4}, {2, 3, 5}, DType::f32), "sequential_linear: w must be [E=2, N, K=4], got [2, 3, 5]");
  EXPECT_EQ(said({2, 4}, {2, 3, 4}, DType::f64), "sequential_linear: w is float64 but rows are float32");
}

constexpr int64_t kWidth = 20, kExperts = 5, kTopk = 2;

struct Results {
  std::vector<double> y, dx, dweights;
  std::vector<std::vector<double>> dparameters;
  bool operator==(const Results&) const = default;
};

struct Settings {
  DType dtype = DType::f64;
  bool grouped = true, swiglu = true, rematerialise = false;
  bool biases = false;
  int64_t tokens = 37;
  double weight = 0;  // of every row; 0: random weights
  bool block_sparse = false;
  bool in_place = false;  // tokens are read in place
  std::vector<std::string> adapted = {};
};

// Runs dispatch, experts and combine, forward and backward.
Results run(const Settings& with) {
  Rank rank;
  Alone alone;
  MoeConfig moe;
  moe.num_experts = kExperts;
  moe.moe_grouped_gemm = with.grouped;
  if (with.block_sparse) moe.moe_expert_backend = "block_sparse";
  moe.moe_expert_add_bias = with.biases;
  MlpConfig mlp;
  mlp.ffn_hidden_size = 24;
  mlp.swiglu = with.swiglu;
  Builder builder{.stream = rank.stream, .dtype = with.dtype, .init_std = 0.3, .output_init_std = 0.3};
  if (!with.adapted.empty()) builder.lora = std::make_shared<LoraConfig>(3, 6.0, 0.0, with.adapted);
  Experts experts(builder, moe, mlp, kWidth);
  testing::bind_gradients(rank.stream, experts);
  for (Parameter* parameter : experts.parameters())  // B is initialised to zeros, which would hide A
    if (parameter->name().ends_with(kLoraB))
      rank.stream.copy(parameter->value(), rank.normal(parameter->value().shape(), with.dtype, parameter->name()));

  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({with.tokens, kWidth}, with.dtype, "x"));
  const Shape chosen{with.tokens, kTopk};
  const DType wide = accumulator(with.dtype);
  const Var weights =
      tape.input(with.weight == 0 ? rank.normal(chosen, wide, "weights") : filled(rank, chosen, wide, with.weight));
  // Expert 3 gets no tokens.
  auto ids = random_ids(with.tokens, kTopk, kExperts - 1, "ids");
  for (int32_t& id : ids) id += id == 3 ? 1 : 0;
  const DispatchMap map = make_dispatch_map(rank.stream, routing_of(rank, ids, kTopk, kExperts), alone);
  const auto forward = [&](const Dispatched& in) {
    return experts.forward(tape, in, {map.groups}, with.rematerialise);
  };
  const Var y = with.in_place ? forward(dispatch_in_place(tape, x, weights, map))
                              : combine(tape, forward(dispatch(tape, x, weights, map)), map);
  tape.backward({{y, rank.normal(y.shape(), with.dtype, "dy")}});
  return {values(y.value()), values(tape.gradient(x)), values(tape.gradient(weights)), testing::gradients_of(experts)};
}

void expect_close(const Results& a, const Results& b, double tolerance) {
  EXPECT_TRUE(close(a.y, b.y, tolerance, tolerance));
  EXPECT_TRUE(close(a.dx, b.dx, tolerance, tolerance));
  EXPECT_TRUE(close(a.dweights, b.dweights, tolerance, tolerance));
  for (size_t i = 0; i < a.dparameters.size(); ++i)
    EXPECT_TRUE(close(a.dparameters[i], b.dparameters[i], tolerance, tolerance)) << "parameter " << i;
}

TEST(Experts, SequentialEqualsGrouped) {
  for (const bool swiglu : {true, false})
    for (const bool biases : {false, true})
      for (const int64_t tokens : {0, 1, 37}) {
        for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 2e-5}}) {
          SCOPED_TRACE(cat(dtype, " ", tokens, " tokens", swiglu ? " swiglu" : " gelu", biases ? " with biases" : ""));
          Settings settings{.dtype = dtype, .swiglu = swiglu, .biases = biases, .tokens = tokens};
          const Results grouped = run(settings);
          settings.grouped = false;
          expect_close(grouped, run(settings), tolerance);
        }
      }
}

// There are more tokens than a block has rows. Grouped experts may fuse their activation, which changes no bit.
TEST(Experts, BlockSparseEqualsGroupedToTheBit) {
  for (const bool swiglu : {true, false})
    for (const bool biases : {false, true})
      for (const int64_t tokens : {0, 1, 37, 400})
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
          for (const bool again : {false, true}) {
            SCOPED_TRACE(
                cat(dtype, " ", tokens, " tokens", swiglu ? " swiglu" : " gelu", biases ? " with biases" : ""));
            Settings settings{
                .dtype = dtype, .swiglu = swiglu, .rematerialise = again, .biases = biases, .tokens = tokens};
            const Results grouped = run(settings);
            settings.block_sparse = true;
            EXPECT_EQ(grouped, run(settings));
          }
}

// Grouped products read tokens in place, unless there are adapters or biases of the second matrix.
TEST(Experts, TokensInPlaceGiveTheBitsOfCopies) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t tokens : {0, 1, 37})
      for (const bool swiglu : {true, false})
        for (const bool again : {false, true})
          for (const bool biases : {false, true}) {
            SCOPED_TRACE(
                cat(dtype, " ", tokens, " tokens", swiglu ? " swiglu" : " gelu", biases ? " with biases" : ""));
            Settings settings{
                .dtype = dtype, .swiglu = swiglu, .rematerialise = again, .biases = biases, .tokens = tokens};
            const Results copies = run(settings);
            settings.in_place = true;
            EXPECT_EQ(copies, run(settings));
          }
}

TEST(Experts, TokensInPlaceWorkWithEveryBackendAndAdapter) {
  const auto expect_same = [](Settings settings) {
    const Results copies = run(settings);
    settings.in_place = true;
    EXPECT_EQ(copies, run(settings));
  };
  expect_same({.grouped = false});
  expect_same({.block_sparse = true});
  const std::vector<std::string> first = {"gate_proj", "up_proj"}, second = {"down_proj"};
  expect_same({.adapted = first});
  expect_same({.adapted = second});
  expect_same({.adapted = {"gate_proj", "up_proj", "down_proj"}});
}

// Rows of width D are not kept: for T tokens with K experts each, they would take K times the tokens' memory.
TEST(Experts, KeepsNoRowOfTheModelsWidth) {
  constexpr int64_t kTokens = 64, kWide = 256, kNarrow = 8;
  const auto kept = [&](bool in_place) {
    Rank rank;
    Alone alone;
    MoeConfig moe;
    moe.num_experts = kExperts;
    MlpConfig mlp;
    mlp.ffn_hidden_size = kNarrow;
    Experts experts({.stream = rank.stream, .dtype = DType::f32}, moe, mlp, kWide);
    testing::bind_gradients(rank.stream, experts);
    Tape tape(rank.stream);
    const Var x = tape.input(rank.normal({kTokens, kWide}, DType::f32, "x")),
              weights = tape.input(rank.normal({kTokens, kTopk}, DType::f32, "weights"));
    const DispatchMap map = make_dispatch_map(
        rank.stream, routing_of(rank, random_ids(kTokens, kTopk, kExperts, "ids"), kTopk, kExperts), alone);
    const int64_t before = rank.stream.arena().live();
    const auto forward = [&](const Dispatched& in) { return experts.forward(tape, in, {map.groups}, false); };
    const Var y = in_place ? forward(dispatch_in_place(tape, x, weights, map))
                           : combine(tape, forward(dispatch(tape, x, weights, map)), map);
    return rank.stream.arena().live() - before;
  };
  constexpr int64_t kRows = kTokens * kTopk, kRowBytes = kWide * 4;
  EXPECT_EQ(kept(false) - kept(true), kRows * kRowBytes);
}

TEST(Experts, MegatronsKeyOrOursMakesThemSequential) {
  MoeConfig config;
  EXPECT_EQ(expert_backend(config), ExpertBackend::grouped);
  config.moe_expert_backend = "sequential";
  EXPECT_EQ(expert_backend(config), ExpertBackend::sequential);
  config = {};
  config.moe_grouped_gemm = false;
  EXPECT_EQ(expert_backend(config), ExpertBackend::sequential);
  config.moe_expert_backend = "block_sparse";
  EXPECT_TRUE(test::message_of<ConfigError>([&] { config.validate(1); }).starts_with("moe_grouped_gemm = false"));
  config.moe_grouped_gemm = true;
  EXPECT_NO_THROW(config.validate(1));
  EXPECT_EQ(expert_backend(config), ExpertBackend::block_sparse);
}

TEST(Experts, ExpertsWithoutTokensGetZeroGradients) {
  for (const bool grouped : {true, false})
    for (const std::vector<double>& gradient : run({.grouped = grouped}).dparameters) {
      const size_t matrix = gradient.size() / kExperts;
      EXPECT_TRUE(std::all_of(gradient.begin() + static_cast<ptrdiff_t>(3 * matrix),
                              gradient.begin() + static_cast<ptrdiff_t>(4 * matrix), [](double g) { return g == 0; }));
      EXPECT_TRUE(std::any_of(gradient.begin(), gradient.end(), [](double g) { return g != 0; }));
    }
}

TEST(Experts, RematerialisingChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const bool grouped : {true, false})
      for (const bool swiglu : {true, false})
        for (const bool biases : {false, true}) {
          Settings settings{.dtype = dtype, .grouped = grouped, .swiglu = swiglu, .biases = biases};
          const Results kept = run(settings);
          settings.rematerialise = true;
          EXPECT_EQ(kept, run(settings));
        }
}

// y = sum_k w_k f_k(x): twice the weights give twice the output and dx, and <w, dw> = <y, dy>.
TEST(Experts, RowWeightsScaleTheOutputAndHaveAGradient) {
  const Results once = run({.weight = 1}), twice = run({.weight = 2});
  auto doubled = once.y;
  for (double& value : doubled) value *= 2;
  EXPECT_TRUE(close(twice.y, doubled, 1e-13, 1e-13));
  doubled = once.dx;
  for (double& value : doubled) value *= 2;
  EXPECT_TRUE(close(twice.dx, doubled, 1e-13, 1e-13));
  EXPECT_TRUE(close(twice.dweights, once.dweights, 1e-13, 1e-13)) << "f does not depend on its weight";

  Rank rank;
  const auto dy = values(rank.normal({37, kWidth}, DType::f64, "dy"));
  EXPECT_NEAR(std::accumulate(once.dweights.begin(), once.dweights.end(), 0.0),
              std::inner_product(once.y.begin(), once.y.end(), dy.begin(), 0.0), 1e-10);
}

// The partial sums of the ranks of an expert tensor axis add up to one rank's result, in which each bias counts once.
TEST(Experts, SharesOfFeaturesAndOfBiasesAddUp) {
  constexpr int64_t kRows = 6, kFeatures = 8;
  constexpr int kRanks = 2;
  Rank rank;
  MoeConfig moe;
  moe.num_experts = 2;
  moe.moe_expert_add_bias = true;
  MlpConfig mlp;
  mlp.ffn_hidden_size = kFeatures;
  const RowGroups groups = groups_of(rank, {4, 2});
  const auto result = [&](int ranks, int which) {
    const Builder builder{.stream = rank.stream,
                          .dtype = DType::f64,
                          .init_std = 0.3,
                          .output_init_std = 0.3,
                          .expert_tensor_ranks = ranks,
                          .expert_tensor_rank = which,
                          .path = "experts"};
    Experts experts(builder, moe, mlp, kWidth);
    for (Parameter* parameter : experts.parameters()) {  // biases are initialised to zeros, which would hide them
      const auto whole = values(rank.normal(parameter->global_shape(), DType::f64, parameter->name()));
      for (int64_t i = 0; i < parameter->elements(); ++i)
        parameter->value().data<double>()[i] = whole[static_cast<size_t>(parameter->region().global(i))];
    }
    Tape off(rank.stream, Tape::Mode::off);
    const Dispatched in{off.constant(rank.normal({kRows, kWidth}, DType::f64, "rows")),
                        off.constant(rank.normal({kRows}, DType::f64, "weights"))};
    return values(experts.forward(off, in, {groups}, false).value());
  };
  auto sum = result(kRanks, 0);
  const auto second = result(kRanks, 1);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += second[i];
  EXPECT_TRUE(close(sum, result(1, 0), 1e-12, 1e-12));
}

TEST(Experts, BiasesHaveNoWeightDecay) {
  Rank rank;
  MoeConfig moe;
  moe.moe_expert_add_bias = true;
  MlpConfig mlp;
  mlp.ffn_hidden_size = 6;
  const Builder builder{.stream = rank.stream, .expert_ranks = 4, .expert_rank = 2, .path = "moe.experts"};
  Experts experts(builder, moe, mlp, 10);
  const auto parameters = experts.parameters();
  ASSERT_EQ(parameters.size(), 4U);
  EXPECT_EQ(parameters[2]->name(), "moe.experts.gate_up_proj_bias");
  EXPECT_EQ(parameters[2]->global_shape(), Shape({8, 12}));
  EXPECT_EQ(parameters[2]->value().shape(), Shape({2, 12}));
  EXPECT_EQ(parameters[3]->name(), "moe.experts.down_proj_bias");
  EXPECT_EQ(parameters[3]->global_shape(), Shape({8, 10}));
  for (const size_t i : {2U, 3U}) {
    EXPECT_TRUE(parameters[i]->spec().expert);
    EXPECT_FALSE(parameters[i]->spec().weight_decay);
    EXPECT_EQ(parameters[i]->spec().kind, ParameterKind::biases);
    EXPECT_EQ(values(parameters[i]->value()), std::vector<double>(static_cast<size_t>(parameters[i]->elements()), 0));
  }
}

TEST(Experts, ShapesAndShares) {
  Rank rank;
  MoeConfig moe;
  MlpConfig mlp;
  mlp.ffn_hidden_size = 6;
  const Builder builder{.stream = rank.stream, .expert_ranks = 4, .expert_rank = 2, .path = "moe.experts"};
  Experts experts(builder, moe, mlp, 10);
  const auto parameters = experts.parameters();
  ASSERT_EQ(parameters.size(), 2U);
  EXPECT_EQ(parameters[0]->name(), "moe.experts.gate_up_proj");
  EXPECT_EQ(parameters[0]->global_shape(), Shape({8, 12, 10}));
  EXPECT_EQ(parameters[0]->value().shape(), Shape({2, 12, 10}));
  EXPECT_EQ(parameters[0]->region(), parameters[0]->spec().part(4, 2, 1, 0).region);
  EXPECT_EQ(parameters[1]->name(), "moe.experts.down_proj");
  EXPECT_EQ(parameters[1]->global_shape(), Shape({8, 10, 6}));
  for (const Parameter* parameter : parameters) EXPECT_TRUE(parameter->spec().expert);
  mlp.swiglu = false;
  Experts plain(builder, moe, mlp, 10);
  EXPECT_EQ(plain.parameters()[0]->name(), "moe.experts.up_proj");
  EXPECT_EQ(plain.parameters()[0]->global_shape(), Shape({8, 6, 10}));
}

}  // namespace
}  // namespace witan

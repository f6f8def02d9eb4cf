#include "witan/optim/muon.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "optim/optim_support.h"
#include "support/message_of.h"
#include "witan/comm/threads/threads.h"

namespace witan {
namespace {

using testing::close;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::parameter_with_gradient;
using testing::Rank;
using testing::values;

// Results of the original implementations (tests/golden/optim/make_muon.py) by name and rows.
std::map<std::string, std::vector<double>> golden() {
  std::ifstream file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden/optim/muon.tsv");
  std::map<std::string, std::vector<double>> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what, rows, columns;
    words >> what >> rows >> columns;
    for (double value = 0; words >> value;) all[cat(what, " ", rows)].push_back(value);
  }
  return all;
}

double gradient_at(int64_t i, int64_t t) {
  const auto at = static_cast<double>(i);
  return std::sin(1.7 * at + 0.9 * static_cast<double>(t)) * (1 + 0.1 * at);
}

constexpr std::pair<int64_t, int64_t> kShapes[] = {{4, 6}, {7, 3}, {5, 5}};

OptimizerConfig golden_config(const char* optimizer) {
  OptimizerConfig config;
  config.optimizer = optimizer;
  config.lr = 0.05;
  config.weight_decay = 0.1;
  config.muon_momentum = 0.9;
  config.normuon_beta2 = 0.8;
  return config;
}

std::unique_ptr<Parameter> golden_parameter(Rank& rank, ParameterSpec spec) {
  spec.dtype = DType::f64;
  auto parameter = parameter_with_gradient(rank, spec, DType::f64);
  for (int64_t i = 0; i < parameter->elements(); ++i)
    parameter->value().data<double>()[i] = std::cos(0.7 * static_cast<double>(i) + 0.3);
  return parameter;
}

void make_steps(Rank& rank, Parameter& parameter, Optimizer& optimizer, int64_t of_one) {
  StepState step(rank.stream, 2);
  for (int64_t t = 1; t <= 3; ++t) {
    for (int64_t i = 0; i < parameter.elements(); ++i)
      parameter.gradient().data<double>()[i] = gradient_at(i % of_one, t);
    step.set({0.05, 7}, t, t);
    optimizer.update(rank.stream, step);
  }
}

TEST(Muon, MatchesMoonlight) {
  const auto expected = golden();
  for (const bool nesterov : {true, false})
    for (const auto& [rows, columns] : kShapes) {
      Rank rank;
      const auto parameter = golden_parameter(rank, {"p", {rows, columns}});
      OptimizerConfig config = golden_config("muon");
      config.muon_nesterov = nesterov;
      const auto muon = make_optimizer(config, rank.stream, {{parameter.get(), 0, rows * columns}});
      make_steps(rank, *parameter, *muon, rows * columns);
      EXPECT_TRUE(
          close(values(parameter->value()), expected.at(cat(nesterov ? "nesterov " : "momentum ", rows)), 1e-9, 0))
          << rows;
    }
}

TEST(Muon, CoefficientsMatchDionAndEmergingOptimizers) {
  const auto expected = golden();
  for (const auto& [type, steps] : {std::pair{"polar_express", 5}, {"deepseek", 10}})
    for (const auto& [rows, columns] : kShapes) {
      Rank rank;
      const Tensor x = rank.stream.empty({1, rows, columns}, DType::f64);
      for (int64_t i = 0; i < rows * columns; ++i) x.data<double>()[i] = gradient_at(i, 1);
      EXPECT_TRUE(close(values(orthogonalize(rank.stream, x, NewtonSchulz::of(type, steps))),
                        expected.at(cat(type, " ", rows)), 1e-9, 0))
          << type << " " << rows;
    }
}

TEST(NorMuon, MatchesDion) {
  const auto expected = golden();
  for (const auto& [rows, columns] : kShapes) {
    Rank rank;
    const auto parameter = golden_parameter(rank, {"p", {rows, columns}});
    const auto normuon = make_optimizer(golden_config("normuon"), rank.stream, {{parameter.get(), 0, rows * columns}});
    make_steps(rank, *parameter, *normuon, rows * columns);
    EXPECT_TRUE(close(values(parameter->value()), expected.at(cat("normuon ", rows)), 1e-9, 0)) << rows;
    normuon->visit([&, rows = rows](const OptimizerTensor& state) {
      if (state.name != "normuon.v/p") return;
      EXPECT_EQ(state.parameter.shape, Shape{rows});
      EXPECT_TRUE(close(values(state.tensor), expected.at(cat("normuon.v ", rows)), 1e-9, 0));
    });
  }
}

// A stack of experts, gate and up of each, and part of a stack: each matrix is updated as if alone.
TEST(Muon, TreatsExpertsGateAndUpAsSeparateMatrices) {
  const auto expected = golden();
  for (const char* optimizer : {"muon", "normuon"}) {
    Rank rank;
    const auto stack = golden_parameter(rank, {.name = "experts",
                                               .shape = {3, 8, 6},
                                               .expert = true,
                                               .tensor_split = {1, 2},
                                               .kind = ParameterKind::experts});
    for (int64_t i = 0; i < stack->elements(); ++i)
      stack->value().data<double>()[i] = std::cos(0.7 * static_cast<double>(i % 24) + 0.3);
    const auto before = values(stack->value());
    const auto muon = make_optimizer(golden_config(optimizer), rank.stream, {{stack.get(), 48, 96}});
    make_steps(rank, *stack, *muon, 24);
    const auto after = values(stack->value());
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + 48, before.begin())) << "owned by another rank";
    for (auto matrix = after.begin() + 48; matrix != after.end(); matrix += 24)
      EXPECT_TRUE(close(std::vector<double>(matrix, matrix + 24),
                        expected.at(std::string(optimizer) == "muon" ? "nesterov 4" : "normuon 4"), 1e-9, 0));
  }
}

// Values after three updates of a parameter of which each of `ranks` tensor-parallel ranks has a piece, combined.
std::vector<double> updated_in_pieces(const char* optimizer, const ParameterSpec& spec, int ranks) {
  std::vector<double> whole(static_cast<size_t>(spec.shape.elements()));
  ThreadWorld world(ranks);
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  world.run([&](int rank_of_group) {
    Rank rank(1, int64_t{1} << 26);
    const auto group = world.group(rank_of_group, all, "tensor");
    Parameter parameter(rank.stream, spec, spec.part(1, 0, ranks, rank_of_group), 1);
    parameter.bind_gradient(rank.stream.empty(parameter.shape(), DType::f64));
    const auto muon = make_optimizer(golden_config(optimizer), rank.stream,
                                     {{&parameter, 0, parameter.elements(), ranks > 1 ? group.get() : nullptr}});
    StepState step(rank.stream, 2);
    for (int64_t t = 1; t <= 3; ++t) {
      for (int64_t i = 0; i < parameter.elements(); ++i)
        parameter.gradient().data<double>()[i] = gradient_at(parameter.region().global(i), t);
      step.set({0.05, 0.05}, t, t);
      muon->update(rank.stream, step);
    }
    for (int64_t i = 0; i < parameter.elements(); ++i)
      whole[static_cast<size_t>(parameter.region().global(i))] = parameter.value().data<double>()[i];
  });
  return whole;
}

// Split by rows, columns, gate and up, and within experts; five matrices are not a multiple of the ranks.
TEST(Muon, UpdatesShardedMatricesLikeWholeOnes) {
  for (const char* optimizer : {"muon", "normuon"})
    for (const ParameterSpec& spec :
         std::vector<ParameterSpec>{{.name = "rows", .shape = {12, 7}, .dtype = DType::f64, .tensor_split = {0}},
                                    {.name = "columns", .shape = {5, 18}, .dtype = DType::f64, .tensor_split = {1}},
                                    {.name = "gate_up", .shape = {24, 5}, .dtype = DType::f64, .tensor_split = {0, 2}},
                                    {.name = "experts.gate_up",
                                    .shape = {5, 12, 8},
                                    .dtype = DType::f64,
                                    .expert = true,
                                    .tensor_split = {1, 2},
                                    .kind = ParameterKind::experts},
                                    {.name = "experts.down",
                                    .shape = {5, 8, 6},
                                    .dtype = DType::f64,
                                    .expert = true,
                                    .tensor_split = {2},
                                    .kind = ParameterKind::experts}}) {
      const auto whole = updated_in_pieces(optimizer, spec, 1);
      for (const int ranks : {2, 3})
        EXPECT_TRUE(close(updated_in_pieces(optimizer, spec, ranks), whole, 1e-10, 0))
            << optimizer << " " << spec.name << " on " << ranks;
    }
}

TEST(Muon, ScalesByTheShapeOfAMatrix) {
  OptimizerSettings settings;
  EXPECT_DOUBLE_EQ(muon_scale(settings, 9, 100), 2);
  EXPECT_DOUBLE_EQ(muon_scale(settings, 100, 9), 2);
  settings.muon_extra_scale_factor = 1;
  EXPECT_DOUBLE_EQ(muon_scale(settings, 9, 100), 10);
  settings.muon_scale_mode = "shape_scaling";
  EXPECT_DOUBLE_EQ(muon_scale(settings, 9, 100), 1);
  EXPECT_DOUBLE_EQ(muon_scale(settings, 400, 100), 2);
  settings.muon_scale_mode = "unit_rms_norm";
  EXPECT_DOUBLE_EQ(muon_scale(settings, 25, 100), 0.5);
  settings.muon_scale_mode = "none";
  EXPECT_DOUBLE_EQ(muon_scale(settings, 25, 100), 1);
}

// As the default optimizer, Muon updates only the matrices inside the model.
TEST(Muon, UsesAdamForAllButMatricesAndExperts) {
  OptimizerConfig config;
  config.optimizer = "muon";
  const ParamGroups groups(config);
  ASSERT_EQ(groups.size(), 2U);
  for (const ParameterKind kind : {ParameterKind::matrices, ParameterKind::experts})
    EXPECT_EQ(groups.of({.name = "p", .shape = {2, 2}, .kind = kind}).settings.optimizer, "muon");
  for (const ParameterKind kind : {ParameterKind::embeddings, ParameterKind::head, ParameterKind::norms,
                                   ParameterKind::biases, ParameterKind::routers}) {
    const ParamGroup& group = groups.of({.name = "p", .shape = {2, 2}, .kind = kind});
    EXPECT_EQ(group.settings.optimizer, "adam");
    EXPECT_EQ(group.settings.lr, config.lr);
    EXPECT_EQ(group.shard_by, ShardBy::elements);
    EXPECT_EQ(group.label, "kind = embeddings,head,norms,biases,routers");
  }
}

// A table that inherits the optimizer gives two groups; one that names it applies it to all that it selects.
TEST(Muon, TablesInheritBothHalves) {
  OptimizerConfig config;
  config.optimizer = "normuon";
  set_field(config.fields(), "optimizer_groups",
            R"([{match = "layers.0.*", lr_mult = 2}, {kind = "norms", weight_decay = 0},
                {kind = "head", optimizer = "muon"}, {kind = "experts", muon_num_ns_steps = 7}])",
            "test");
  const ParamGroups groups(config);
  const auto of = [&](const char* name, ParameterKind kind) -> const ParamGroup& {
    return groups.of({.name = name, .shape = {2, 2}, .kind = kind});
  };
  EXPECT_EQ(of("layers.0.q", ParameterKind::matrices).settings.optimizer, "normuon");
  EXPECT_EQ(of("layers.0.q", ParameterKind::matrices).settings.lr, 2 * config.lr);
  EXPECT_EQ(of("layers.0.norm", ParameterKind::norms).settings.optimizer, "adam");
  EXPECT_EQ(of("layers.0.norm", ParameterKind::norms).settings.lr, 2 * config.lr);
  EXPECT_EQ(of("layers.1.norm", ParameterKind::norms).settings.optimizer, "adam");
  EXPECT_EQ(of("layers.1.norm", ParameterKind::norms).settings.weight_decay, 0);
  EXPECT_EQ(of("head.weight", ParameterKind::head).settings.optimizer, "muon");
  EXPECT_EQ(of("layers.1.experts", ParameterKind::experts).settings.muon_num_ns_steps, 7);
  EXPECT_EQ(of("layers.1.router", ParameterKind::routers).settings.optimizer, "adam");
}

TEST(Muon, RefusesVectorsByNameInAdvance) {
  Rank rank;
  const auto norm = parameter_with_gradient(rank, {.name = "norm.weight", .shape = {4}, .kind = ParameterKind::norms});
  OptimizerConfig config;
  set_field(config.fields(), "optimizer_groups", R"([{kind = "norms", optimizer = "muon"}])", "test");
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              make_optimizer(config, rank.stream, {{norm.get(), 0, 4}});
            }),
            "optimizer = muon: norm.weight [4] is not a matrix; give its parameter group optimizer = \"adam\"");
}

TEST(Muon, KeepsMomentumAndForNorMuonAMomentPerRow) {
  Rank rank;
  const auto parameter = golden_parameter(rank, {"p", {4, 6}});
  const auto names = [&](const char* optimizer) {
    std::vector<std::string> all;
    make_optimizer(golden_config(optimizer), rank.stream, {{parameter.get(), 0, 24}})
        ->visit([&](const OptimizerTensor& state) { all.push_back(cat(state.name, " ", state.tensor.shape())); });
    return all;
  };
  EXPECT_THAT(names("muon"), ElementsAre("muon.momentum/p [24]"));
  EXPECT_THAT(names("normuon"), ElementsAre("muon.momentum/p [24]", "normuon.v/p [4]"));
}

TEST(Muon, CountsTheWorkOfAllMatrices) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<ParameterShard> shards;
  for (int i = 0; i < 20; ++i) {
    parameters.push_back(std::make_unique<Parameter>(meta, ParameterSpec{std::to_string(i), {32, 48}},
                                                     ParameterSpec::Part{{0, 1536}, {32, 48}}, 1));
    parameters.back()->bind_gradient(meta.empty({32, 48}, DType::f32, MemoryTag::gradients));
    shards.push_back({parameters.back().get(), 0, 1536});
  }
  OptimizerConfig config;
  config.optimizer = "muon";
  const auto muon = make_optimizer(config, meta, shards);
  StepState step(meta, 2);
  step.set({1, 1}, 1, 1);
  muon->update(meta, step);
  EXPECT_EQ(meta.costs().at("other").at("batched_gemm").flops, 20 * NewtonSchulz::of("quintic", 5).flops(32, 48));
}

}  // namespace
}  // namespace witan

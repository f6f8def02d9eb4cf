#include "moe/moe_support.h"
#include "witan/moe/layer/experts.h"
#include "witan/moe/layer/moe.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::close;
using testing::Rank;
using testing::values;

constexpr int64_t kWidth = 6;

struct Result {
  std::vector<double> y, dx;
};

template <class Forward>
Result run(Rank& rank, const Forward& forward) {
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 5, kWidth}, DType::f64, "x"));
  const Var y = forward(tape, x);
  tape.backward({{y, rank.normal({2, 5, kWidth}, DType::f64, "dy")}});
  return {values(y.value()), values(tape.gradient(x))};
}

// A layer with shared experts equals the layer without them plus the output of an MLP.
TEST(SharedExperts, AreAddedToTheRoutedExperts) {
  for (const bool gated : {true, false})
    for (const bool rematerialise : {false, true}) {
      Rank rank;
      Alone alone;
      MlpConfig mlp{.ffn_hidden_size = 4, .swiglu = gated}, shared = mlp;
      MoeConfig config;
      config.num_experts = 4;
      const Builder builder{.stream = rank.stream, .dtype = DType::f64, .init_std = 0.5, .path = "moe"};
      Moe without(builder, config, mlp, kWidth, alone);
      config.moe_shared_expert_intermediate_size = shared.ffn_hidden_size = 9;
      Moe with(builder, config, mlp, kWidth, alone);
      Mlp beside(builder / "shared_experts", shared, kWidth);
      for (Module* module :
           {static_cast<Module*>(&without), static_cast<Module*>(&with), static_cast<Module*>(&beside)})
        bind_gradients(rank.stream, *module);

      const Result routed = run(rank, [&](Tape& t, const Var& x) { return without.forward(t, x, rematerialise).y; });
      const Result added = run(rank, [&](Tape& t, const Var& x) { return beside.forward(t, x, rematerialise); });
      const Result both = run(rank, [&](Tape& t, const Var& x) { return with.forward(t, x, rematerialise).y; });
      std::vector<double> y, dx;
      for (size_t i = 0; i < both.y.size(); ++i) {
        y.push_back(routed.y[i] + added.y[i]);
        dx.push_back(routed.dx[i] + added.dx[i]);
      }
      EXPECT_TRUE(close(both.y, y, 1e-14, 1e-14));
      EXPECT_TRUE(close(both.dx, dx, 1e-14, 1e-14));
      const auto parameters = with.parameters();
      ASSERT_EQ(parameters.size(), 5u);
      for (size_t i : {0u, 1u})
        EXPECT_EQ(values(parameters[3 + i]->gradient()), values(beside.parameters()[i]->gradient()));
      EXPECT_FALSE(parameters[3]->spec().expert) << "every rank has them";
    }
}

}  // namespace
}  // namespace witan

// A model of its own, built and trained with the library: a small Mixture of Experts learns a + b mod 31 from pairs of
// tokens. It first "trains" on the meta device, which computes nothing but says how much memory the training needs.
#include <cstdio>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/moe/layer/moe.h"
#include "witan/moe/routers/balance.h"
#include "witan/nn/layers.h"
#include "witan/ops/norm/norm.h"
#include "witan/ops/pointwise/activation.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"
#include "witan/ops/vocabulary/vocabulary.h"
#include "witan/optim/lr_schedule.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/shard_plan.h"

using namespace witan;

constexpr int64_t V = 31, D = 64, T = 256;  // tokens, which is the modulus; width; pairs in a step

// A layer that the library does not have: y = W_down swiglu(W_gate_up (g * rms_norm(x))). Ops bring their backward.
struct GatedMix : Module {
  GatedMix(const Builder& builder, int64_t in, int64_t inner, int64_t out)
      : Module(builder.path),
        gain(add_parameter(builder, "gain", {in}, {Initialization::Kind::ones}, /*weight_decay=*/false)),
        gate_up(builder / "gate_up", in, 2 * inner, builder.init_std),
        down(builder / "down", inner, out, builder.init_std) {
    for (Linear* child : {&gate_up, &down}) add_child(*child);
  }
  Var forward(Tape& tape, const Var& x) {  // x [T, in] -> [T, out]
    const Var normed = ops::rmsnorm(tape, x, tape.parameter(gain), 1e-5);
    return down.forward(tape, ops::swiglu(tape, gate_up.forward(tape, normed), {}));
  }
  Parameter& gain;
  Linear gate_up, down;
};

struct Adder : Module {
  Adder(const Builder& builder, const MoeConfig& config, Group& expert_group)
      : Module(builder.path),
        embedding(builder / "embedding", V, D),
        mix(builder / "mix", 2 * D, 2 * D, D),
        moe(builder / "moe", config, {.ffn_hidden_size = D}, D, expert_group),
        head(builder / "head", D, V, builder.init_std) {
    for (Module* child : std::initializer_list<Module*>{&embedding, &mix, &moe, &head}) add_child(*child);
  }
  std::pair<Var, Var> forward(Tape& tape, const Tensor& pairs) {  // int32 [T, 2] -> logits [T, V], balance loss [1]
    const Var x = mix.forward(tape, ops::reshape(tape, embedding.forward(tape, pairs), {T, 2 * D}));  // [T, D]
    const MoeOutput out = moe.forward(tape, x, /*rematerialise=*/false);
    return {head.forward(tape, ops::add(tape, x, out.y)), out.record.loss(kBalanceLoss)};
  }
  Embedding embedding;
  GatedMix mix;
  Moe moe;
  Linear head;
};

// Returns the loss of the last step.
double train(Stream& stream, int64_t steps) {
  const MoeConfig moe;     // 8 experts, top-2
  OptimizerConfig config;  // AdamW, cosine
  config.lr = 1e-2;
  config.min_lr = 0;
  const Groups alone = make_meta_groups(Layout({}, 1, moe.num_experts), 0);
  Adder model({.stream = stream, .init_std = 0.1, .output_init_std = 0.1}, moe, alone.of(Axis::expert));
  GradientBuckets gradients(stream, model.parameters(), alone, {});
  const auto optimizer = make_optimizer(config, stream, unsharded(model.parameters()));
  StepState state(stream);
  const Tensor pairs = stream.empty({T, 2}, DType::i32), sums = stream.empty({T}, DType::i32);
  const Tensor weights = stream.empty({T}, DType::f32);  // of each pair in the loss
  double loss = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    for (int64_t t = 0; t < T && !stream.is_meta(); ++t) {
      const auto sample = static_cast<int32_t>(Philox(1, 0).below(V * V, static_cast<uint64_t>(step * T + t)));
      pairs.data<int32_t>()[2 * t] = sample / V, pairs.data<int32_t>()[2 * t + 1] = sample % V;
      sums.data<int32_t>()[t] = (sample / V + sample % V) % V, weights.data<float>()[t] = 1.0f / T;
    }
    gradients.begin_micro_batch(0);
    Tape tape(stream);
    const auto [logits, balance] = model.forward(tape, pairs);
    const Var entropy = ops::cross_entropy(tape, logits, sums, weights).loss;
    tape.backward({{ops::weighted_sum(tape, {{entropy, 1}, {balance, moe.balance_losses().front().coefficient}}), {}}});
    gradients.finish_step();
    state.set({learning_rate(config, steps, step)}, step, step);
    optimizer->update(stream, state);
    if (stream.is_meta()) continue;
    loss = entropy.value().data<float>()[0];
    if (step == 1 || step % 50 == 0) std::printf("step %3d   loss %.4f\n", int(step), loss);
  }
  return loss;
}

int main() {
  ThreadPool pool(usable_cores());
  Stream plan({Device::Kind::meta}, Arena::meta(), pool);
  train(plan, 2);
  std::printf("%.2f MB, %.1f MFLOP a step\n", double(plan.arena().high_water()) / 1e6, plan.flops() / 2e6);
  Stream cpu({Device::Kind::cpu}, Arena::reserve(plan.arena().high_water()), pool);
  return train(cpu, 300) < 0.1 ? 0 : 1;  // guessing: log 31 = 3.43
}

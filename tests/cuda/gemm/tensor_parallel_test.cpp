// A small model divided among GPUs by columns, rows and vocabulary, against the same ranks on the CPU.
#include "witan/nn/tensor_parallel.h"

#include "support/gpu_world.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/norm/norm.h"
#include "witan/ops/pointwise/activation.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {
namespace {

using testing::GpuRank;
using testing::on_gpus;
using testing::values;

constexpr int64_t B = 2, S = 12, T = B * S, D = 64, F = 48, V = 1003;

class TensorParallelOnGpus : public testing::OverNccl {};
INSTANTIATE_TEST_SUITE_P(Gpus, TensorParallelOnGpus, ::testing::Values(2, 4));

// A rank's inputs: its own parts of the parameters, and ids, targets and weights that are equal on all ranks.
struct Inputs {
  Tensor ids, targets, weights;
  std::vector<Tensor> parameters;  // table [n, D], norm [D], first [2 F, D], second [D, F], bias [D]
  ops::VocabularyPart part;
};

Inputs inputs_of(GpuRank& rank, DType dtype) {
  const Tensor ids = rank.stream.empty({B, S}, DType::i32), targets = rank.stream.empty({T}, DType::i32);
  for (int64_t t = 0; t < T; ++t) {
    ids.data<int32_t>()[t] = static_cast<int32_t>(t * 97 % V);
    targets.data<int32_t>()[t] = static_cast<int32_t>(t * 61 % V);
  }
  const int64_t n = rank.size(), most = (V + n - 1) / n;  // the last rank holds fewer rows
  const int64_t begin = rank.rank * most, rows = std::min(most, V - begin);
  const auto own = [&](const Shape& shape, const char* name) {
    const Tensor out = rank.own_normal(shape, DType::f64, name), x = rank.stream.empty(shape, dtype);
    dispatch_floating(dtype, [&]<class E>() {
      for (int64_t i = 0; i < x.elements(); ++i) x.data<E>()[i] = E(0.2 * out.data<double>()[i]);
    });
    return x;
  };
  return {ids,
          targets,
          rank.normal({T}, accumulator(dtype), "weights"),
          {own({rows, D}, "table"), rank.normal({D}, dtype, "norm"), own({2 * F, D}, "first"), own({D, F}, "second"),
           rank.normal({D}, dtype, "bias")},
          {begin, V}};
}

// The loss, and the gradients of the parameters, on the device.
std::vector<Tensor> run(Stream& stream, const Inputs& in, const TensorAxis& axis) {
  Tape tape(stream);
  std::vector<Var> p;
  for (const Tensor& parameter : in.parameters) p.push_back(tape.input(parameter));
  const Var x = from_sharded_layer(tape, ops::embedding(tape, in.ids, p[0], in.part), axis);
  const Var h = ops::linear(tape, to_sharded_layer(tape, ops::rmsnorm(tape, x, p[1], 1e-5), axis), p[2], {});
  const Var y = from_sharded_layer(tape, ops::linear(tape, ops::swiglu(tape, h, {}), p[3], {}), axis, p[4]);
  Var logits = ops::linear(tape, to_sharded_layer(tape, ops::add(tape, x, y), axis), p[0], {});
  const int64_t columns = logits.size(2);
  logits = ops::reshape(tape, logits, {T, columns});
  const Var loss =
      ops::cross_entropy(tape, std::move(logits), in.targets, in.weights, in.part, &axis.group, ops::LossGradient::one)
          .loss;
  tape.backward({{loss, {}}});
  std::vector<Tensor> out = {loss.value()};
  for (const Var& parameter : p) out.push_back(tape.gradient(parameter));
  return out;
}

TEST_P(TensorParallelOnGpus, AgreeWithTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Placement residual : {Placement::replicate(), Placement::shard(1)})
      on_gpus(GetParam(), [&](GpuRank& rank) {
        SCOPED_TRACE(cat(dtype, ", residual ", residual));
        const auto host = rank.everyone("host"), cpu = rank.everyone("cpu");
        const auto watch = cuda::watch(rank.gpu, *host);
        const auto gpu = cuda::make_group(rank.everyone("gpu"), rank.gpu, watch, {Sums::fast, PeerAccess::none});
        const Inputs in = inputs_of(rank, dtype);
        Inputs on_gpu{rank.to_gpu(in.ids), rank.to_gpu(in.targets), rank.to_gpu(in.weights), {}, in.part};
        for (const Tensor& parameter : in.parameters) on_gpu.parameters.push_back(rank.to_gpu(parameter));
        const auto expected = run(rank.stream, in, {*cpu, residual}), seen = run(rank.gpu, on_gpu, {*gpu, residual});
        for (size_t i = 0; i < expected.size(); ++i) {
          double largest = 0;
          for (const double value : values(expected[i])) largest = std::max(largest, std::abs(value));
          const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-4 : 3e-2;
          EXPECT_TRUE(testing::close(rank.to_host(seen[i]), expected[i], tolerance * largest, tolerance))
              << (i == 0 ? "loss" : "gradient of parameter ") << i;
        }
        // Every rank must have the same bits of the loss.
        const Tensor losses = rank.gpu.empty({rank.size()}, seen[0].dtype());
        gpu->all_gather(rank.gpu, losses, seen[0]);
        for (const double loss : values(rank.to_host(losses))) EXPECT_EQ(loss, values(rank.to_host(seen[0]))[0]);
      });
}

}  // namespace
}  // namespace witan

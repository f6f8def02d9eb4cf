#include "witan/kernels/optimizer/optimizer.h"

#include <cmath>
#include <limits>

#include "support/cuda_rank.h"
#include "support/optimizer.h"

namespace witan {
namespace {

using testing::values;

constexpr testing::AdamWSettings kAdam{0.9, 0.95, 1e-8, 0.1};

class OptimizerOnGpu : public testing::CudaTest {
 protected:
  Tensor step(double update, double skip = 0) {
    return host.tensor<double>({kernels::kStepValues}, {0.02, 0.5, update, skip, update + 2, 0.5});
  }
  testing::AdamWTensors make(int64_t n, DType value, DType gradient, const std::string& name) {
    const DType wide = accumulator(value);
    const Tensor v = host.normal({n}, wide, name + "v", 0.1);
    dispatch_floating(wide, [&]<class A>() {
      for (A& x : v.span<A>()) x = A(std::abs(static_cast<float>(x)));
    });
    const Tensor p = host.normal({n}, value, name);
    const Tensor rest = is_split(value) ? testing::split_into(host.stream, p, host.normal({n}, wide, name)) : Tensor();
    return {p, rest, host.normal({n}, wide, name + "m", 0.1), v, host.normal({n}, gradient, name + "g", 0.1)};
  }
  testing::AdamWTensors on_gpu(const testing::AdamWTensors& t) {
    return {to_gpu(t.value), to_gpu(t.remainder), to_gpu(t.m), to_gpu(t.v), to_gpu(t.gradient)};
  }
  void expect_same(const testing::AdamWTensors& gpu_side, const testing::AdamWTensors& cpu_side) {
    const double most = tolerance(cpu_side.m.dtype());
    if (cpu_side.remainder.defined())
      EXPECT_TRUE(testing::close(weights(gpu_side), testing::joined(cpu_side.value, cpu_side.remainder), most, most));
    else
      EXPECT_TRUE(agree(gpu_side.value, cpu_side.value, most, most));
    EXPECT_TRUE(agree(gpu_side.m, cpu_side.m, most / 10, most));
    EXPECT_TRUE(agree(gpu_side.v, cpu_side.v, most / 100, most));
  }
  template <class Kernel, class Args>
  void compare_all(const Kernel& kernel, const Args& args, size_t states, size_t narrow);
  std::vector<double> weights(const testing::AdamWTensors& on_gpu) {
    return testing::joined(to_host(on_gpu.value), to_host(on_gpu.remainder));
  }
};

constexpr DType kFloating[] = {DType::bf16, DType::f32, DType::f64};
constexpr DType kValues[] = {DType::bf16, DType::f16, DType::f32, DType::f64};

TEST_F(OptimizerOnGpu, AdamWAgreesWithTheCpu) {
  for (const DType value : kValues)
    for (const DType gradient : kFloating)
      for (const int64_t n : {0, 1, 33, 40000, 100003}) {
        if (value == DType::f16 && gradient != DType::f32) continue;
        SCOPED_TRACE(cat(value, " ", gradient, " ", n));
        const auto cpu = make(n, value, gradient, "p"), gpu_side = on_gpu(cpu);
        for (int update = 1; update <= 2; ++update) {
          testing::adamw(host.stream, cpu, step(update), kAdam);
          testing::adamw(gpu(), gpu_side, to_gpu(step(update)), kAdam);
        }
        expect_same(gpu_side, cpu);
      }
}

// More tensors than a warp examines at once, of all types, among them empty and odd ones, and some with unusual
// alignment.
TEST_F(OptimizerOnGpu, AdamWOfManyTensorsMatchesEach) {
  std::vector<testing::AdamWTensors> cpu, gpu_side;
  for (int64_t i = 0; i < 75; ++i) {
    const int64_t n = i % 10 == 3 ? 0 : i == 40 ? 70001 : 1 + i * 37;
    const DType value = kFloating[i % 4 == 0 ? 1 : i % 7 == 0 ? 2 : 0], gradient = kFloating[i % 3];
    cpu.push_back(make(n, value, gradient, std::to_string(i)));
    gpu_side.push_back(on_gpu(cpu.back()));
    if (i % 5 != 0 || n < 2) continue;
    const auto tail = [&](Tensor& tensor) {
      if (tensor.defined()) tensor = tensor.narrow(0, 1, n - 1);
    };
    for (auto* t : {&cpu.back(), &gpu_side.back()})
      for (Tensor* tensor : {&t->value, &t->remainder, &t->m, &t->v, &t->gradient}) tail(*tensor);
  }
  const auto items_of = [](const std::vector<testing::AdamWTensors>& all) {
    std::vector<kernels::UpdateItem> items;
    for (size_t i = 0; i < all.size(); ++i) items.push_back({all[i].update(), i % 2 ? 0.1 : 0.0});
    return items;
  };
  const kernels::AdamWArgs args{kAdam.beta1, kAdam.beta2, kAdam.eps};
  for (int update = 1; update <= 2; ++update) {
    testing::update_with(kernels::adamw_all, host.stream, items_of(cpu), step(update), args);
    testing::update_with(kernels::adamw_all, gpu(), items_of(gpu_side), to_gpu(step(update)), args);
  }
  for (size_t i = 0; i < cpu.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(gpu_side[i], cpu[i]);
  }
}

TEST_F(OptimizerOnGpu, UpdatesUseTheLearningRateOfTheirGroup) {
  const Tensor now = host.tensor<double>({kernels::kStepValues + 2}, {0.5, 0.5, 1, 0, 3, 1, 0.125, 0.02});
  const int64_t rate = kernels::step_value::learning_rate_of(2);
  testing::AdamWSettings adam = kAdam;
  adam.rate = rate;
  for (const DType dtype : kValues) {
    const auto cpu = make(40000, dtype, accumulator(dtype), "p"), gpu_side = on_gpu(cpu);
    testing::adamw(host.stream, cpu, now, adam);
    testing::adamw(gpu(), gpu_side, to_gpu(now), adam);
    expect_same(gpu_side, cpu);
    testing::sgd(host.stream, {cpu.value, cpu.remainder, cpu.m, cpu.gradient}, now, {0.9, 0.1, rate});
    testing::sgd(gpu(), {gpu_side.value, gpu_side.remainder, gpu_side.m, gpu_side.gradient}, to_gpu(now),
                 {0.9, 0.1, rate});
    expect_same(gpu_side, cpu);
  }
}

TEST_F(OptimizerOnGpu, ASkippedStepChangesNothing) {
  auto t = on_gpu(make(1000, DType::bf16, DType::bf16, "p"));
  t.gradient = poisoned({1000}, DType::bf16);
  const auto before = std::vector{weights(t), values(to_host(t.m))};
  testing::adamw(gpu(), t, to_gpu(step(1, 1)), kAdam);
  testing::sgd(gpu(), {t.value, t.remainder, t.m, t.gradient}, to_gpu(step(1, 1)), {0.9, 0.1});
  EXPECT_EQ((std::vector{weights(t), values(to_host(t.m))}), before);
}

TEST_F(OptimizerOnGpu, LossScalesChangeAsOnTheCpu) {
  const Tensor scaler = host.tensor<double>({kernels::kLossScalerValues}, {65536, 0, 2}), gpu_scaler = to_gpu(scaler);
  const Tensor weights = host.tensor<float>({2}, {1, 0.125f}), gpu_scaled = poisoned({2}, DType::f32);
  for (int i = 0; i < 30; ++i) {
    const double norm = i % 7 == 2 || i > 22 ? HUGE_VAL : 3.0 + i, skips = i == 5 ? 1.5 : 0;
    const Tensor now = step(i + 1), total = host.tensor<double>({2}, {norm * norm, 0});
    const Tensor gpu_now = to_gpu(now), gpu_total = to_gpu(total);
    const auto by = [&](Stream& stream, const Tensor& values, const Tensor& sums, const Tensor& state) {
      kernels::unscale_total(stream, sums, state);
      kernels::clip_by_norm(stream, values, sums, 1e-4);
      if (skips > 0) stream.write(values.narrow(0, kernels::step_value::skip, 1), &skips);
      kernels::adapt_loss_scale(stream, values, state, {4, 3, 2, i != 11});
    };
    by(host.stream, now, total, scaler);
    by(gpu(), gpu_now, gpu_total, gpu_scaler);
    EXPECT_EQ(values(to_host(gpu_scaler)), values(scaler)) << i;
    EXPECT_TRUE(testing::close(values(to_host(gpu_now)), values(now), 0, 1e-14)) << i;
  }
  kernels::scale_losses(gpu(), gpu_scaled, to_gpu(weights), gpu_scaler);
  EXPECT_EQ(values(to_host(gpu_scaled))[1] * 8, values(scaler)[0]);
}

// Masters of every kind under updates of size zero, which turn infinity into NaN: they are joined and split as on the
// CPU.
TEST_F(OptimizerOnGpu, SplitMastersHaveTheCpusBits) {
  const Tensor whole = testing::masters_of_every_kind(host.stream);
  const int64_t n = whole.elements();
  const Tensor zeros = host.stream.zeros({n}, DType::f32);
  const Tensor still = host.tensor<double>({kernels::kStepValues}, {0, 1, 1, 0, 1, 1});
  for (const bool adam : {false, true}) {
    const Tensor value = host.stream.empty({n}, DType::bf16), rest = testing::split_into(host.stream, value, whole);
    const testing::AdamWTensors t{to_gpu(value), to_gpu(rest), to_gpu(zeros), to_gpu(zeros), to_gpu(zeros)};
    if (adam) {
      testing::adamw(gpu(), t, to_gpu(still), {0.9, 0.95, 1e-8, 0});
      testing::adamw(host.stream, {value, rest, zeros, zeros, zeros}, still, {0.9, 0.95, 1e-8, 0});
    } else {
      testing::sgd(gpu(), {t.value, t.remainder, {}, t.gradient}, to_gpu(still), {0, 0});
      testing::sgd(host.stream, {value, rest, {}, zeros}, still, {0, 0});
    }
    const Tensor upper = to_host(t.value), lower = to_host(t.remainder);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(upper.data<bf16>()[i].bits, value.data<bf16>()[i].bits) << i;
      EXPECT_EQ(lower.data<bf16>()[i].bits, rest.data<bf16>()[i].bits) << i;
    }
  }
}

// Float16 weights cover values that are rounded, that are below the smallest exponent, and that become infinite.
TEST_F(OptimizerOnGpu, MastersBesideFloat16HaveTheCpusBits) {
  const Tensor whole = testing::masters_of_every_kind(host.stream);
  const int64_t n = whole.elements();
  for (int64_t i = 0; i < n; i += 2)
    whole.data<float>()[i] = std::ldexp(1 + 1e-4f * static_cast<float>(i), i % 48 - 30);
  const Tensor zeros = host.stream.zeros({n}, DType::f32);
  const Tensor still = host.tensor<double>({kernels::kStepValues}, {0, 1, 1, 0, 1, 1});
  const Tensor value = host.stream.empty({n}, DType::f16), rest = testing::split_into(host.stream, value, whole);
  const testing::AdamWTensors t{to_gpu(value), to_gpu(rest), to_gpu(zeros), to_gpu(zeros), to_gpu(zeros)};
  testing::adamw(gpu(), t, to_gpu(still), {0.9, 0.95, 1e-8, 0});
  testing::adamw(host.stream, {value, rest, zeros, zeros, zeros}, still, {0.9, 0.95, 1e-8, 0});
  const Tensor narrow = to_host(t.value), beyond = to_host(t.remainder);
  for (int64_t i = 0; i < n; ++i) {
    const f16 found = narrow.data<f16>()[i], expected = value.data<f16>()[i];
    EXPECT_TRUE(found.bits == expected.bits || (std::isnan(float(found)) && std::isnan(float(expected)))) << i;
    EXPECT_EQ(beyond.data<float>()[i], rest.data<float>()[i]) << i;
  }
}

TEST_F(OptimizerOnGpu, SgdAgreesWithTheCpu) {
  for (const DType value : kValues)
    for (const DType gradient : kFloating)
      for (const double momentum : {0.0, 0.9})
        for (const int64_t n : {0, 3, 40001}) {
          if (value == DType::f16 && gradient != DType::f32) continue;
          SCOPED_TRACE(cat(value, " ", gradient, " ", n));
          const auto of = make(n, value, gradient, "p"), copied = on_gpu(of);
          const testing::SgdTensors cpu{of.value, of.remainder, momentum == 0 ? Tensor() : of.m, of.gradient};
          const testing::SgdTensors gpu_side{copied.value, copied.remainder, momentum == 0 ? Tensor() : copied.m,
                                             copied.gradient};
          testing::sgd(host.stream, cpu, step(1), {momentum, 0.01});
          testing::sgd(gpu(), gpu_side, to_gpu(step(1)), {momentum, 0.01});
          expect_same(copied, of);
        }
}

// Tensors of every dtype, size and alignment, with `states` state tensors, the first `narrow` of which are bfloat16.
template <class Kernel, class Args>
void OptimizerOnGpu::compare_all(const Kernel& kernel, const Args& args, size_t states, size_t narrow) {
  std::vector<kernels::UpdateItem> cpu, gpu_side;
  for (const DType value : kValues)
    for (const DType gradient : kFloating)
      for (const int64_t n : {0, 1, 33, 2048, 40000, 100003}) {
        if (value == DType::f16 && gradient != DType::f32) continue;
        const auto from = make(n, value, gradient, cat(value, gradient, n));
        const DType wide = accumulator(value);
        kernels::UpdateItem item{{from.value, from.remainder, {}, from.gradient}, n % 2 ? 0.1 : 0.0};
        for (size_t s = 0; s < states; ++s) {
          item.tensors.state[s] = host.stream.empty({n}, s < narrow ? DType::bf16 : wide);
          const auto start = values(from.v);
          dispatch_floating(item.tensors.state[s].dtype(), [&]<class A>() {
            for (int64_t i = 0; i < n; ++i)
              item.tensors.state[s].template data<A>()[i] = A(static_cast<float>(start[static_cast<size_t>(i)]));
          });
        }
        cpu.push_back(item);
        kernels::UpdateTensors& t = item.tensors;
        for (Tensor* tensor : {&t.value, &t.remainder, &t.state[0], &t.state[1], &t.state[2], &t.gradient})
          if (tensor->defined()) *tensor = to_gpu(*tensor);
        gpu_side.push_back(item);
      }
  for (int update = 1; update <= 2; ++update) {
    testing::update_with(kernel, host.stream, cpu, step(update), args);
    testing::update_with(kernel, gpu(), gpu_side, to_gpu(step(update)), args);
  }
  for (size_t i = 0; i < cpu.size(); ++i) {
    const kernels::UpdateTensors &c = cpu[i].tensors, &g = gpu_side[i].tensors;
    SCOPED_TRACE(cat(c.value.dtype(), " ", c.gradient.dtype(), " ", c.value.elements()));
    // A moment that is rounded to the other neighbour changes the value a little.
    const double most = narrow > 0 ? 2e-3 : tolerance(accumulator(c.value.dtype()));
    if (c.remainder.defined())
      EXPECT_TRUE(testing::close(testing::joined(to_host(g.value), to_host(g.remainder)),
                                 testing::joined(c.value, c.remainder), most, most));
    else
      EXPECT_TRUE(agree(g.value, c.value, most, most));
    for (size_t s = 0; s < states; ++s) EXPECT_TRUE(agree(g.state[s], c.state[s], most, s < narrow ? 1e-2 : most)) << s;
  }
}

TEST_F(OptimizerOnGpu, SgdLionAndAdEMAMixOfManyTensorsAgreeWithTheCpu) {
  compare_all(kernels::sgd_all, kernels::SgdArgs{0.9}, 1, 0);
  compare_all(kernels::sgd_all, kernels::SgdArgs{0}, 0, 0);
  compare_all(kernels::lion_all, kernels::LionArgs{0.9, 0.99}, 1, 0);
  compare_all(kernels::ademamix_all, kernels::AdEMAMixArgs{0.9, 0.95, 0.9999, 5, 1e-8, 0}, 3, 0);
  compare_all(kernels::ademamix_all, kernels::AdEMAMixArgs{0.9, 0.95, 0.9999, 5, 1e-8, 100}, 3, 0);
}

TEST_F(OptimizerOnGpu, AdamWWithMomentsInBfloat16AgreesWithTheCpu) {
  compare_all(kernels::adamw_all, kernels::AdamWArgs{0.9, 0.95, 1e-8}, 2, 1);
  compare_all(kernels::adamw_all, kernels::AdamWArgs{0.9, 0.95, 1e-8}, 2, 2);
}

TEST_F(OptimizerOnGpu, SquareSumsAgreeWithTheCpuAtAnyAddress) {
  for (const DType dtype : kValues)
    for (const auto& [P, N] : std::vector<std::array<int64_t, 2>>{{1, 1},
                                                                  {1, 0},
                                                                  {0, 9},
                                                                  {1, 70000},
                                                                  {3, kernels::kChunkElements},
                                                                  {2, kernels::kChunkElements + 3},
                                                                  {5, 7}}) {
      SCOPED_TRACE(cat(dtype, " [", P, ", ", N, "]"));
      const Tensor x = host.normal({P, N}, dtype, "x");
      dispatch_floating(dtype, [&]<class T>() {
        for (int64_t i = 0; i < x.elements(); i += 5) x.data<T>()[i] = T(0.0f);
      });
      const Shape shape{P * kernels::chunks_of(N), 2};
      const Tensor expected = host.poisoned(shape, DType::f64), out = poisoned(shape, DType::f64);
      kernels::square_sums(host.stream, expected, x);
      kernels::square_sums(gpu(), out, to_gpu(x));
      EXPECT_TRUE(agree(out, expected, 0, 1e-12));

      const Tensor moved = poisoned({P * N + 1}, dtype).narrow(0, 1, P * N).reshape({P, N});
      gpu().write(moved, x.raw());
      const Tensor again = poisoned(shape, DType::f64);
      kernels::square_sums(gpu(), again, moved);
      EXPECT_EQ(values(to_host(again)), values(to_host(out))) << "the address changed a bit";
    }
}

TEST_F(OptimizerOnGpu, SquareSumsOfManyTensorsFillTheirRows) {
  std::vector<kernels::SquareSumsItem> cpu, gpu_side;
  int64_t rows = 0;
  for (int64_t i = 0; i < 70; ++i) {
    const Shape shape{i % 6, i % 9 == 8 ? 70000 : i * 31};
    cpu.push_back({host.normal(shape, kFloating[i % 3], std::to_string(i)), rows});
    gpu_side.push_back({to_gpu(cpu.back().x), rows});
    rows += shape[0] * kernels::chunks_of(shape[1]) + i % 2;  // some rows belong to other ranks
  }
  const Tensor expected = host.stream.zeros({rows, 2}, DType::f64), out = gpu().zeros({rows, 2}, DType::f64);
  kernels::DeviceTable table(gpu(), static_cast<int64_t>(cpu.size()) * kernels::kSquareSumsColumns,
                             MemoryTag::workspace);
  kernels::square_sums_all(host.stream, expected, cpu, {});
  kernels::square_sums_all(gpu(), out, gpu_side, table.holding(gpu(), kernels::square_sums_table(gpu_side)));
  EXPECT_TRUE(agree(out, expected, 0, 1e-12));
}

TEST_F(OptimizerOnGpu, LargeAndNonFiniteValuesReachTheSums) {
  const Tensor out = poisoned({3, 2}, DType::f64);
  kernels::square_sums(gpu(), out, to_gpu(host.tensor<float>({3, 2}, {3e38f, 3e38f, HUGE_VALF, 0, NAN, 1})));
  const auto sums = values(to_host(out));
  EXPECT_NEAR(sums[0] / 1.8e77, 1, 1e-6);
  EXPECT_TRUE(std::isinf(sums[2]));
  EXPECT_TRUE(std::isnan(sums[4]));
}

TEST_F(OptimizerOnGpu, TotalsAgreeAndRepeat) {
  for (const int64_t C : {0, 1, 5, 5000}) {
    const Tensor sums = host.normal({C, 2}, DType::f64, "sums"), order = host.stream.empty({C}, DType::i64);
    for (int64_t i = 0; i < C; ++i) order.data<int64_t>()[i] = C - 1 - i;
    const Tensor expected = host.poisoned({2}, DType::f64);
    kernels::total_sums(host.stream, expected, sums, order);
    const auto run = [&] {
      const Tensor total = poisoned({2}, DType::f64);
      kernels::total_sums(gpu(), total, to_gpu(sums), to_gpu(order));
      return total;
    };
    const Tensor total = run();
    EXPECT_TRUE(agree(total, expected, 1e-11, 1e-12));
    EXPECT_EQ(values(to_host(run())), values(to_host(total)));
  }
}

TEST_F(OptimizerOnGpu, ClippingMatchesTheCpu) {
  for (const double squares : {0.25, 16.0, std::numeric_limits<double>::infinity(), std::nan("")})
    for (const double limit : {0.0, 1.0}) {
      const Tensor total = host.tensor<double>({2}, {squares, 0}), now = step(3, 1), gpu_now = to_gpu(now);
      kernels::clip_by_norm(host.stream, now, total, limit);
      kernels::clip_by_norm(gpu(), gpu_now, to_gpu(total), limit);
      EXPECT_EQ(values(to_host(gpu_now)), values(now)) << squares << " " << limit;
    }
}

// Losses and norms with occasional spikes.
TEST_F(OptimizerOnGpu, SpikesAreFoundAsOnTheCpu) {
  constexpr int64_t kWindow = 70;
  const Tensor history = host.stream.zeros({kernels::spike_history_elements(kWindow)}, DType::f64);
  const Tensor gpu_history = to_gpu(history), order = host.tensor<int64_t>({3}, {4, 0, 2}), gpu_order = to_gpu(order);
  int found = 0;
  for (int i = 1; i <= 200; ++i) {
    const double leap = i % 37 == 0 ? 5 : i == 50 ? std::numeric_limits<double>::infinity() : 0;
    const Tensor losses = host.tensor<double>({5}, {std::sin(i), 1e9, 1, 1e9, i % 2 ? leap : 0});
    const Tensor total = host.tensor<double>({2}, {2 + std::cos(i) + (i % 2 ? 0 : leap * leap), 0});
    const Tensor now = step(i), gpu_now = to_gpu(now);
    kernels::skip_spikes(host.stream, now, history, total, losses, order, 4);
    kernels::skip_spikes(gpu(), gpu_now, gpu_history, to_gpu(total), to_gpu(losses), gpu_order, 4);
    EXPECT_EQ(values(to_host(gpu_now)), values(now)) << i;
    found += values(now)[kernels::step_value::skip] != 0;
  }
  EXPECT_GE(found, 4);
  EXPECT_TRUE(agree(gpu_history, history, 1e-12, 1e-12));
}

}  // namespace
}  // namespace witan

#include "witan/kernels/optimizer/muon.h"

#include <limits>

#include "support/cuda_rank.h"
#include "support/optimizer.h"
#include "witan/kernels/common/device_table.h"
#include "witan/kernels/optimizer/optimizer.h"

namespace witan {
namespace {

using testing::values;

class MuonOnGpu : public testing::CudaTest {
 protected:
  Tensor step(double skip = 0) { return host.tensor<double>({kernels::kStepValues}, {0.02, 0.5, 1, skip, 3, 0.5}); }

  kernels::MuonItem make(int64_t n, DType value, DType gradient, const std::string& name) {
    kernels::MuonItem item;
    item.value = host.normal({n}, value, name);
    if (is_split(value))
      item.remainder = testing::split_into(host.stream, item.value, host.normal({n}, DType::f32, name));
    item.momentum = host.normal({n}, accumulator(value), name + "b");
    item.gradient = host.normal({n}, gradient, name + "g");
    const DType direction = kernels::muon_direction_dtype(value);
    item.direction = host.poisoned({n}, direction);
    item.orthogonal = host.normal({n}, direction, name + "u");
    item.weight_decay = 0.1;
    item.scale = 1.5;
    return item;
  }
  kernels::MuonItem on_gpu(kernels::MuonItem item) {
    for (Tensor* tensor :
         {&item.value, &item.remainder, &item.momentum, &item.gradient, &item.direction, &item.orthogonal})
      *tensor = to_gpu(*tensor);
    return item;
  }
  void update(Stream& stream, const std::vector<kernels::MuonItem>& items, const Tensor& now, bool nesterov) {
    kernels::DeviceTable table(stream, static_cast<int64_t>(items.size()) * kernels::kMuonColumns,
                               MemoryTag::optimizer);
    const Tensor& found = table.holding(stream, kernels::muon_table(items));
    kernels::muon_momentum(stream, items, found, now, {0.9, nesterov});
    kernels::muon_update(stream, items, found, now, {0.9, nesterov});
    stream.wait();  // the table is destroyed here
  }
};

constexpr DType kFloating[] = {DType::bf16, DType::f32, DType::f64};

// Several items, among them odd and empty ones.
TEST_F(MuonOnGpu, MomentumAndUpdateAgreeWithTheCpu) {
  for (const DType value : {DType::bf16, DType::f16, DType::f32, DType::f64})
    for (const DType gradient : kFloating)
      for (const bool nesterov : {true, false}) {
        if (value == DType::f16 && gradient != DType::f32) continue;
        SCOPED_TRACE(cat(value, " ", gradient, " ", nesterov));
        std::vector<kernels::MuonItem> cpu, gpu_side;
        for (const int64_t n : {1, 0, 33, 2048, 40000, 100003}) {
          cpu.push_back(make(n, value, gradient, std::to_string(n)));
          gpu_side.push_back(on_gpu(cpu.back()));
        }
        update(host.stream, cpu, step(), nesterov);
        update(gpu(), gpu_side, to_gpu(step()), nesterov);
        const double most = tolerance(kernels::muon_direction_dtype(value)), narrow = tolerance(accumulator(value));
        for (size_t i = 0; i < cpu.size(); ++i) {
          EXPECT_TRUE(agree(gpu_side[i].momentum, cpu[i].momentum, narrow, narrow));
          EXPECT_TRUE(agree(gpu_side[i].direction, cpu[i].direction, most, most));
          if (!is_split(value)) {
            EXPECT_TRUE(agree(gpu_side[i].value, cpu[i].value, most, most));
            continue;
          }
          EXPECT_TRUE(testing::close(testing::joined(to_host(gpu_side[i].value), to_host(gpu_side[i].remainder)),
                                     testing::joined(cpu[i].value, cpu[i].remainder), narrow, narrow));
        }
      }
}

TEST_F(MuonOnGpu, ASkippedStepChangesNothing) {
  kernels::MuonItem item = make(5000, DType::f32, DType::f32, "p");
  std::ranges::fill(item.gradient.span<float>(), std::numeric_limits<float>::quiet_NaN());
  const kernels::MuonItem there = on_gpu(item);
  update(gpu(), {there}, to_gpu(step(1)), true);
  EXPECT_EQ(values(to_host(there.value)), values(item.value));
  EXPECT_EQ(values(to_host(there.momentum)), values(item.momentum));
  EXPECT_EQ(values(to_host(there.direction)), std::vector<double>(5000));
}

TEST_F(MuonOnGpu, NormsOfMatricesAndRowsAgreeWithTheCpu) {
  for (const DType dtype : kFloating)
    for (const auto& [n, R, K] : {std::tuple{1, 1, 1}, {3, 5, 7}, {2, 300, 260}}) {
      SCOPED_TRACE(cat(dtype, " ", n, " ", R, " ", K));
      const double most = tolerance(dtype);
      const Tensor x = host.normal({n, R, K}, dtype, "x"), x_gpu = to_gpu(x);
      const Tensor v = host.tensor<double>({n, R}, std::vector<double>(static_cast<size_t>(n * R), 0.5));
      const Tensor v_gpu = to_gpu(v);
      const auto run = [&](Stream& stream, const Tensor& on, const Tensor& moments, const Tensor& now) {
        const Tensor flat = on.reshape({n, int64_t{R} * K});
        const Tensor sums = stream.empty({n * kernels::chunks_of(int64_t{R} * K), 2}, DType::f64);
        kernels::square_sums(stream, sums, flat);
        kernels::normalize_matrices(stream, on, sums, {1.02, 1e-6});
        const Tensor squares = stream.empty({n, R}, DType::f64), factors = stream.empty({n, R}, DType::f64),
                     totals = stream.empty({n, 2}, DType::f64);
        kernels::row_squares(stream, squares.reshape({n * R}), on.reshape({n * R, K}));
        kernels::normuon_moments(stream, {moments, factors, totals, squares}, now, {0.8, K});
        kernels::scale_rows(stream, on, factors, totals);
      };
      run(host.stream, x, v, step());
      run(gpu(), x_gpu, v_gpu, to_gpu(step()));
      EXPECT_TRUE(agree(x_gpu, x, most / 10, 3 * most));
      EXPECT_TRUE(agree(v_gpu, v, most / 10, 3 * most));
    }
}

}  // namespace
}  // namespace witan

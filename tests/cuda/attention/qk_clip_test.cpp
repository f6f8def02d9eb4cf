#include "witan/kernels/attention/qk_clip.h"

#include <limits>

#include "support/attention.h"
#include "support/cuda_rank.h"
#include "support/optimizer.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using kernels::AttentionInputs;
using testing::AttentionSize;
using testing::close;
using testing::CudaTest;
using testing::values;

class QkClipOnGpu : public CudaTest {
 protected:
  AttentionInputs inputs(const AttentionSize& size, DType dtype) {
    AttentionInputs in{host.normal(size.queries(), dtype, "q"),
                       host.normal(size.keys(), dtype, "k"),
                       host.normal(size.values(), dtype, "v"),
                       {}};
    in.scale = 0.3;
    in.window = size.window;
    return in;
  }
  AttentionInputs on_gpu(AttentionInputs in) {
    for (Tensor* tensor : {&in.q, &in.k, &in.v, &in.sequence_ids, &in.block.key_ids})
      if (tensor->defined()) *tensor = to_gpu(*tensor);
    return in;
  }
  // The largest logits over several calls, from none on.
  std::vector<double> found(const std::vector<AttentionInputs>& calls, bool gpu_side) {
    Stream& stream = gpu_side ? gpu() : host.stream;
    const Tensor largest = stream.empty({calls[0].q.size(2)}, accumulator(calls[0].q.dtype()));
    kernels::fill(stream, largest, -std::numeric_limits<double>::infinity());
    for (const AttentionInputs& in : calls) kernels::attention_max_logits(stream, largest, gpu_side ? on_gpu(in) : in);
    return values(gpu_side ? to_host(largest) : largest);
  }
  void expect_same(const std::vector<AttentionInputs>& calls) {
    const double tolerance = calls[0].q.dtype() == DType::f64 ? 1e-12 : 1e-5;
    const auto on_device = found(calls, true);
    EXPECT_TRUE(close(on_device, found(calls, false), 0, tolerance));
    EXPECT_EQ(on_device, found(calls, true)) << "to the bit";
  }
};

TEST_F(QkClipOnGpu, LargestLogitsAgreeWithTheCpu) {
  for (const AttentionSize& size : std::vector<AttentionSize>{{1, 1, 1, 1, 8},
                                                              {2, 5, 2, 1, 4},
                                                              {1, 70, 3, 3, 64},
                                                              {2, 333, 6, 2, 128},
                                                              {1, 200, 4, 2, 192, 128},
                                                              {1, 150, 3, 1, 33},
                                                              {2, 515, 4, 1, 64, 64, 100}})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(cat(size.S, " of ", size.hd, " in ", dtype));
      expect_same({inputs(size, dtype)});
    }
}

TEST_F(QkClipOnGpu, LeavesPaddingOut) {
  const AttentionSize size{3, 150, 4, 2, 64};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(cat(dtype));
    AttentionInputs in = inputs(size, dtype);
    std::vector<int32_t> ids;
    for (int i = 0; i < 3 * 150; ++i) ids.push_back(i % 150 < 110 - i / 150 * 55 ? i % 150 / 37 : -1);
    in.sequence_ids = host.tensor<int32_t>({3, 150}, ids);
    expect_same({in});
    in.sequence_ids = host.tensor<int32_t>({3, 150}, std::vector<int32_t>(450, -1));
    EXPECT_EQ(found({in}, true), std::vector<double>(4, -std::numeric_limits<double>::infinity()));
  }
}

TEST_F(QkClipOnGpu, DocumentsMicroBatchesAndRingBlocksAgree) {
  const AttentionSize size{2, 192, 4, 2, 64};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    AttentionInputs in = inputs(size, dtype), other = in;
    std::vector<int32_t> ids;
    for (int i = 0; i < 384; ++i) ids.push_back(i / 37);
    in.sequence_ids = host.tensor<int32_t>({2, 192}, ids);
    other.q = host.normal(size.queries(), dtype, "other q");
    expect_same({in, other});
    std::vector<AttentionInputs> blocks;
    for (int of = 0; of < 3; ++of)
      for (int from = 0; from < 3; ++from) {
        AttentionInputs part = in;
        part.q = testing::share_of(host, in.q, 3, of);
        part.k = testing::share_of(host, in.k, 3, from), part.v = testing::share_of(host, in.v, 3, from);
        part.sequence_ids = testing::share_of(host, in.sequence_ids, 3, of);
        part.block = {testing::zigzag(192, 3, of), testing::zigzag(192, 3, from),
                      testing::share_of(host, in.sequence_ids, 3, from), 192};
        blocks.push_back(part);
      }
    expect_same(blocks);
    EXPECT_TRUE(close(found(blocks, true), found({in}, true), 0, 1e-5));
  }
}

TEST_F(QkClipOnGpu, ScaledProjectionsAgreeWithTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const double skip : {0.0, 1.0}) {
      const Tensor step = host.tensor<double>({kernels::kStepValues}, {0, 1, 1, skip, 1, 1});
      const Tensor largest = host.stream.empty({4}, accumulator(dtype));
      dispatch_floating(largest.dtype(), [&]<class A>() {
        for (const auto& [head, logit] : {std::pair{0, 90.0}, {1, 412.5}, {2, 100.0}, {3, 7.0}})
          largest.data<A>()[head] = A(logit);
      });
      const Tensor value = host.normal({5000}, dtype, "p");
      const Tensor rest = dtype == DType::f16
                              ? testing::split_into(host.stream, value, host.normal({5000}, DType::f32, "p"))
                          : dtype == DType::bf16 ? host.normal({5000}, kRemainder, "rest")
                                                 : Tensor();
      const Tensor gpu_value = to_gpu(value), gpu_rest = rest.defined() ? to_gpu(rest) : Tensor();
      // Whole groups, and groups in which a part is scaled differently.
      for (const kernels::ClipArgs& args :
           {kernels::ClipArgs{100, 0.75, 321, 3000}, {100, 0.5, 321, 3000, 1777, 1}, {100, 0.5, 321, 3000, 1777, 0}}) {
        kernels::clip_projection(gpu(), {gpu_value, gpu_rest}, to_gpu(largest), 2, to_gpu(step), args);
        kernels::clip_projection(host.stream, {value, rest}, largest, 2, step, args);
      }
      EXPECT_TRUE(close(values(to_host(gpu_value)), values(value), 0, size_of(dtype) == 2 ? 8e-3 : 1e-6));
      if (!is_split(dtype)) continue;
      EXPECT_TRUE(close(testing::joined(to_host(gpu_value), to_host(gpu_rest)), testing::joined(value, rest), 0, 1e-6));
    }
}

}  // namespace
}  // namespace witan

// Ring attention over NCCL, with one GPU per rank, against attention of the whole sequence on the CPU.
#include "support/attention.h"
#include "support/attention_pass.h"
#include "support/dropout.h"
#include "support/gpu_world.h"
#include "witan/autograd/tape.h"
#include "witan/ops/attention/attention.h"

namespace witan {
namespace {

using testing::attention_pass;
using testing::GpuRank;
using testing::on_gpus;
using testing::share_of;

class RingAttentionOnGpus : public testing::OverNccl {};
INSTANTIATE_TEST_SUITE_P(Gpus, RingAttentionOnGpus, ::testing::Values(2, 4));

using Case = testing::WholeSequence;

// y, dq, dk, dv
using Results = std::vector<Tensor>;

void expect_whole(int n, const Case& c, double tolerance) {
  SCOPED_TRACE(::testing::Message() << n << " ranks, S=" << c.S << " hd=" << c.hd << " " << name_of(c.dtype));
  on_gpus(n, [&](GpuRank& rank) {
    const auto host = rank.everyone("host");
    const auto group = cuda::make_group(rank.everyone("context"), rank.gpu, cuda::watch(rank.gpu, *host), {});
    std::vector<Tensor> inputs = c.inputs(rank);
    const Tensor dy = c.dy(rank), ids = c.ids(rank);
    kernels::Dropout how = testing::dropout_of(rank, c.dropout);
    const Results expected = attention_pass(rank.stream, inputs, dy, [&](Tape& tape, const std::vector<Var>& in) {
      return ops::attention(tape, in[0], in[1], in[2], ids, {0.2, how, {}, c.window});
    });

    const auto mine = [&](const Tensor& x) { return rank.to_gpu(share_of(rank, x, n, rank.rank)); };
    for (Tensor& input : inputs) input = mine(input);
    how.step = rank.to_gpu(how.step);
    const Tensor my_ids = ids.defined() ? mine(ids) : Tensor();
    const Tensor my_dy = mine(dy);
    Stream side(rank.gpu.device(), rank.gpu.shared_arena(), rank.pool, int64_t{1} << 20);
    for (Stream* beside : {static_cast<Stream*>(nullptr), &side}) {
      const Results got = attention_pass(rank.gpu, inputs, my_dy, [&](Tape& tape, const std::vector<Var>& in) {
        return ops::ring_attention(tape, in[0], in[1], in[2], my_ids, *group, {0.2, how, {}, c.window}, beside);
      });
      const char* names[] = {"y", "dq", "dk", "dv"};
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(
            testing::close(rank.to_host(got[i]), share_of(rank, expected[i], n, rank.rank), tolerance, tolerance))
            << names[i] << " of rank " << rank.rank << (beside ? ", on two streams" : "");
    }
  });
}

TEST_P(RingAttentionOnGpus, MatchesTheWholeSequence) {
  expect_whole(GetParam(), {2, 240, 4, 2, 40, DType::f64}, 1e-12);
  expect_whole(GetParam(), {1, 1024, 4, 1, 64, DType::f32}, 3e-5);
  expect_whole(GetParam(), {1, 1024, 4, 1, 64, DType::bf16}, 6e-2);  // cuDNN takes the square blocks
}

TEST_P(RingAttentionOnGpus, WindowsAndValueSizesMatchTheWhole) {
  for (const int64_t window : {1, 50, 130, 200}) {
    expect_whole(GetParam(), {.B = 2, .S = 240, .H = 4, .G = 2, .hd = 40, .dtype = DType::f64, .window = window},
                 1e-12);
    expect_whole(GetParam(),
                 {.B = 1, .S = 1024, .H = 4, .G = 1, .hd = 64, .dtype = DType::bf16, .window = window, .hd_v = 32},
                 6e-2);
  }
  expect_whole(GetParam(), {.B = 1, .S = 240, .H = 4, .G = 2, .hd = 24, .dtype = DType::f64, .hd_v = 40}, 1e-12);
}

TEST_P(RingAttentionOnGpus, DocumentsAndDropoutMatchTheWhole) {
  const std::vector<int64_t> documents = {70, 99, 1, 1, 85};
  expect_whole(GetParam(), {2, 256, 4, 2, 40, DType::f64, documents}, 1e-12);
  expect_whole(GetParam(), {2, 256, 4, 2, 40, DType::bf16, documents}, 6e-2);
  expect_whole(GetParam(), {2, 256, 4, 2, 40, DType::f64, documents, 0.3}, 1e-12);
}

}  // namespace
}  // namespace witan

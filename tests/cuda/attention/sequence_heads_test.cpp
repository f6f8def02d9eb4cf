// Attention with heads exchanged between GPUs that divide sequences, over NCCL and through peer memory, against
// attention of the whole sequence on the CPU.
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

class SequenceHeadsOnGpus : public testing::OverNccl {};
INSTANTIATE_TEST_SUITE_P(Gpus, SequenceHeadsOnGpus, ::testing::Values(2, 4));

using Case = testing::WholeSequence;

// y, dq, dk, dv
using Results = std::vector<Tensor>;

void expect_whole(int n, const Case& c, double tolerance) {
  SCOPED_TRACE(cat(n, " ranks, S=", c.S, " G=", c.G, " hd=", c.hd, " ", c.dtype));
  on_gpus(n, [&](GpuRank& rank) {
    const auto host = rank.everyone("host");
    const auto watch = cuda::watch(rank.gpu, *host);
    std::vector<Tensor> inputs = c.inputs(rank);
    const Tensor dy = c.dy(rank), ids = c.ids(rank);
    kernels::Dropout how = testing::dropout_of(rank, c.dropout);
    how.heads = c.H;
    const Results expected = attention_pass(rank.stream, inputs, dy, [&](Tape& tape, const std::vector<Var>& in) {
      return ops::attention(tape, in[0], in[1], in[2], ids, {0.2, how, {}, c.window});
    });

    const auto mine = [&](const Tensor& x) { return rank.to_gpu(share_of(rank, x, n, rank.rank)); };
    for (Tensor& input : inputs) input = mine(input);
    how.step = rank.to_gpu(how.step);
    how.first_head = rank.rank * c.H / n;
    const Tensor all_ids = ids.defined() ? rank.to_gpu(ids) : Tensor(), my_dy = mine(dy);
    for (const PeerAccess access : {PeerAccess::none, PeerAccess::moves}) {
      const bool peers = access == PeerAccess::moves;
      const auto group = cuda::make_group(rank.everyone(peers ? "peers" : "nccl"), rank.gpu, watch, {.peers = access});
      const Results got = attention_pass(rank.gpu, inputs, my_dy, [&](Tape& tape, const std::vector<Var>& in) {
        const std::vector<Var> all = ops::gather_sequence(tape, in, *group);
        return ops::scatter_sequence(
            tape, ops::attention(tape, all[0], all[1], all[2], all_ids, {0.2, how, {}, c.window}), *group);
      });
      const char* names[] = {"y", "dq", "dk", "dv"};
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(
            testing::close(rank.to_host(got[i]), share_of(rank, expected[i], n, rank.rank), tolerance, tolerance))
            << names[i] << " of rank " << rank.rank << (peers ? ", in peers' memory" : ", through NCCL");
    }
  });
}

TEST_P(SequenceHeadsOnGpus, MatchTheWholeSequence) {
  expect_whole(GetParam(), {2, 240, 4, 2, 40, DType::f64}, 1e-12);
  expect_whole(GetParam(), {2, 240, 8, 4, 40, DType::f64}, 1e-12);
  expect_whole(GetParam(), {1, 1024, 4, 1, 64, DType::f32}, 3e-5);
  expect_whole(GetParam(), {1, 1024, 4, 1, 64, DType::bf16}, 6e-2);
  expect_whole(GetParam(), {1, 1024, 8, 8, 128, DType::bf16}, 6e-2);
}

TEST_P(SequenceHeadsOnGpus, WindowsAndValueSizesMatchTheWhole) {
  for (const int64_t window : {1, 50, 200}) {
    expect_whole(GetParam(), {.B = 2, .S = 240, .H = 4, .G = 2, .hd = 40, .dtype = DType::f64, .window = window},
                 1e-12);
    expect_whole(GetParam(),
                 {.B = 1, .S = 1024, .H = 4, .G = 1, .hd = 64, .dtype = DType::bf16, .window = window, .hd_v = 32},
                 6e-2);
  }
}

TEST_P(SequenceHeadsOnGpus, DocumentsAndDropoutMatchTheWhole) {
  const std::vector<int64_t> documents = {70, 99, 1, 1, 85};
  expect_whole(GetParam(), {2, 256, 4, 2, 40, DType::f64, documents}, 1e-12);
  expect_whole(GetParam(), {2, 256, 4, 2, 40, DType::bf16, documents}, 6e-2);
  expect_whole(GetParam(), {2, 256, 4, 4, 40, DType::f64, documents, 0.3}, 1e-12);
}

}  // namespace
}  // namespace witan

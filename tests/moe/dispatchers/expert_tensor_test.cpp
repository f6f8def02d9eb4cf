#include "witan/moe/dispatchers/expert_tensor.h"

#include "moe/moe_support.h"
#include "support/gradcheck.h"

namespace witan {
namespace {

using testing::Alone;
using testing::gradcheck;
using testing::Rank;

// Merges the buffers of one rank into another order than it would have: finite differences perturb one input of one
// rank.
TEST(MergedBuffers, GradientsMatchDifferences) {
  Rank rank;
  Alone alone;
  const MergedBuffers merged{alone,
                             {rank.tensor<int64_t>({2}, {0, 2}), rank.tensor<int64_t>({2}, {2, 3})},
                             rank.tensor<int64_t>({5}, {3, 0, 4, 1, 2})};
  const Tensor rows = rank.normal({5, 3}, DType::f64, "rows"), weights = rank.normal({5}, DType::f64, "weights");
  gradcheck(rank, "to_merged_order",
            [&](Tape& tape, const std::vector<Var>& in) {
              const Dispatched all = gather_buffers(tape, {in[0], in[1]}, merged);
              return std::vector{all.rows, all.row_weights};
            },
            {rows, weights});
  gradcheck(rank, "to_buffers",
            [&](Tape& tape, const std::vector<Var>& in) { return std::vector{scatter_sums(tape, in[0], merged)}; },
            {rows});
}

}  // namespace
}  // namespace witan

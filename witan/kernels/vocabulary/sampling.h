// Draws tokens from logits: temperature, top-k (Fan et al., 2018), top-p (Holtzman et al., 2019), min-p (Nguyen et al.,
// 2024, arXiv:2407.01082). CPU and GPU choose the same token from the same bits of logits: a token's weight is an
// integer, so that sums of weights do not depend on their order.
//
// x[v], v < words: a row's logits as float32   top: the largest
// w[v] = floor(2^39 exp((x[v] - top) / temperature)), its exponential computed with the same operations everywhere
// (sampling_rules.h); 0 below 2^-38 of the likeliest token, and such tokens are never drawn.
//
// Tokens rank by logit, the larger first, and by id if logits are equal. The first top_k of them are kept; of these the
// fewest first ones that have the share top_p of their weight at least; and of those the tokens with w >= least_weight.
// The token is the first, in the order of ranks or of ids, at which the running sum of kept weights exceeds
// draw / 2^32 of their total.
#pragma once

#include <cstdint>
#include <span>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// How a token is chosen, by increasing work.
enum class Choice : int32_t {
  likeliest,  // no draw
  by_id,      // from all tokens, or those that min-p keeps
  by_rank     // from those that top-k or top-p keep
};

// The weight of the likeliest token.
inline constexpr uint64_t kTopWeight = uint64_t{1} << 39;

// How the token of one row is chosen.
struct SamplingRow {
  Choice choice = Choice::likeliest;
  int32_t words = 0;                   // ids below this can be chosen, at least one
  float octaves = 0, octaves_low = 0;  // log2(e) / temperature, as the sum of two numbers
  uint32_t draw = 0;                   // uniform
  int32_t top_k = 0;                   // 0: all
  double top_p = 1;                    // in (0, 1]
  uint64_t least_weight = 0;           // ceil(kTopWeight min_p)
};

struct SamplingFilters {
  double temperature = 1;  // 0: the likeliest token
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // in (0, 1]
  double min_p = 0;        // in [0, 1]
};
// The row of `words` tokens with these filters and a uniform draw.
SamplingRow sampling_row(const SamplingFilters& filters, int64_t words, uint32_t draw);

// Rows as a tensor has them: [T, kSamplingRowWords] int32.
inline constexpr int64_t kSamplingRowWords = sizeof(SamplingRow) / sizeof(int32_t);

// ids[t]: the token of row t of the logits [T, V], chosen by rows[t]; -1 where a logit is NaN or +infinity, or none is
// finite. `most` is the largest choice of the rows.  ids [T] int32, rows [T, kSamplingRowWords] int32, logits floating
// and contiguous.
void sample_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, const Tensor& rows, Choice most);
WITAN_KERNEL_TWINS(sample_tokens)

namespace cpu {
// The token of one row.
int32_t sample_token(std::span<const float> logits, const SamplingRow& row);
}  // namespace cpu

}  // namespace witan::kernels

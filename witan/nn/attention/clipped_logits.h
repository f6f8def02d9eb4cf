// The logits of a token mixer that QK-clip bounds (kernels/attention/qk_clip.h). Kinds of attention implement it;
// mixers without logits do not.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/tensor/tensor.h"

namespace witan {

class ClippedLogits {
 public:
  virtual ~ClippedLogits() = default;

  // From here on a training forward raises max_logits, [H] of all ranks' heads, accumulator dtype, to the largest
  // logits of this rank's; undefined: it does not.
  void use_max_logits(Tensor max_logits) { max_logits_ = std::move(max_logits); }

  // A parameter that makes queries or keys. The rows of its global tensor are those of the groups of heads that share
  // keys, in order: in each group the first `rows` make `of`, the others `behind`.
  struct Projection {
    // Queries, keys, queries that meet keys which are not of the head alone, or what makes no logits.
    enum class Of : uint8_t { queries, keys, queries_of_shared_keys, others };
    Parameter* parameter;  // never null
    Of of;
    int64_t rows = 0;  // 0: all
    Of behind = Of::others;
  };
  virtual std::vector<Projection> clipped() = 0;
  virtual int64_t logit_heads() const = 0;  // H, of all ranks
  virtual int64_t key_groups() const = 0;   // groups of heads that share keys, of all ranks

 protected:
  Tensor max_logits_;
};

}  // namespace witan

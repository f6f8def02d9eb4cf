// Parts that mixers with a recurrence share: projections side by side, and the short causal convolution of what they
// give.
#pragma once

#include <initializer_list>
#include <vector>

#include "witan/kernels/attention/kv_cache.h"
#include "witan/nn/linear.h"
#include "witan/nn/mixer/whole_sequences.h"

namespace witan {

// For projections to one number of each head, which 8-bit products have no tiles for.
Builder unquantised(const Builder& builder);

// x [B, S, D] -> the outputs of all of them side by side, [B, S, N1 + N2 + …]. Weights that lie side by side are
// multiplied as one.
Var project_together(Tape& tape, const Var& x, std::initializer_list<Linear*> all, const Randomness& randomness);

// The filters of such projections' channels, each projection's with parameters of its own.
class ShortConvolutions {
 public:
  // taps [C, W] of so many heads' channels, bias [C] or null
  void add(int64_t heads, Parameter& taps, Parameter* bias = nullptr) { parts_.push_back({heads, &taps, bias}); }

  // x [B, S, C] of a rank's heads of whole sequences -> [B, S, C] (ops/linear_attention/gated_delta.h)
  Var forward(Tape& tape, const Var& x, const Tensor& sequence_ids, const WholeSequences& whole) const;
  // A step's x [1, T, C] -> [1, T, C], which reads and extends tails [R, W - 1, C].
  Tensor decode(Tape& tape, const Tensor& x, const Tensor& tails, const kernels::CacheTokens& tokens) const;

  // The taps of a channel, with the variance of torch.nn.Conv1d.
  static Initialization init(const Builder& builder, int64_t taps);

 private:
  struct Part {
    int64_t heads;
    Parameter *taps, *bias;
  };
  std::vector<Part> parts_;
};

}  // namespace witan

// How a configuration's experts are chosen (moe_router_selection): the choice that ops::route() makes of the tokens at
// hand. The kernels are those of kernels/moe/selection.h.
#pragma once

#include <optional>
#include <string>

#include "witan/comm/group.h"
#include "witan/kernels/moe/selection.h"
#include "witan/moe/config.h"
#include "witan/moe/routing.h"

namespace witan {

class ExpertSelection {
 public:
  // `path` of the router: layers draw and hash differently.
  ExpertSelection(const MoeConfig& config, const std::string& path);

  // Experts that a token's routing names. Where experts choose tokens all of them do, by scores, and each keeps its
  // capacity (moe/routers/capacity.h) of the highest: the choice of Zhou et al., "Mixture-of-Experts with Expert Choice
  // Routing", arXiv:2202.09368.
  int64_t per_token(Dropping dropping) const;

  // The tokens at hand: logits [T, E] of B sequences, which have as many positions each.
  struct Tokens {
    const Tensor& logits;
    int64_t sequences;
    const TokenSource& source;
    Dropping dropping;
    Group* parts;  // where they are some of a micro-batch's: the ranks with the others. Or null
  };
  // None: the highest scores. A token's choice depends on no other token's in evaluation and generation, where none is
  // forced and nothing is normalised over tokens. A collective of `parts` for Sinkhorn. `bias` [E] float32, added to
  // scores, or undefined. Throws ShapeError where token ids are needed and there are none.
  std::optional<kernels::Selection> choice(Stream& stream, const Tokens& tokens, const Tensor& bias) const;

  // What noise on the router's input is drawn from: x [B, S, D], or [T, D]. Without a step there is none.
  kernels::Dropout jitter(const TokenSource& source, const Shape& x, const TensorAxis* divides_tokens) const;

 private:
  kernels::RandomKeys random_keys(const Tokens& tokens) const;
  Tensor sinkhorn(Stream& stream, const Tokens& tokens) const;

  MoeConfig config_;
  uint64_t choice_site_, jitter_site_;
  double zipf_exponent_ = 0;
};

// The exponent s with which expert 0's load is `imbalance` times the mean, where each token's K of E experts arrive
// first at rates (e + 1)^-s (kernels/moe/arrival.h). imbalance in [1, E / K]; an imbalance that only an exponent above
// 16 would reach gets 16, which is as uneven as choices become.
double zipf_exponent(int64_t E, int64_t K, double imbalance);

}  // namespace witan

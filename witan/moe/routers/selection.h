// How experts are chosen (moe_router_selection): makes the kernels::Selection that ops::route() applies to the tokens
// at hand.
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
  // `path`: the router's; it makes layers draw and hash differently.
  ExpertSelection(const MoeConfig& config, const std::string& path);

  // The number of experts in a token's routing. If experts choose tokens, it is all of them, and each expert keeps as
  // many of the highest scores as its capacity allows (moe/routers/capacity.h): Zhou et al., "Mixture-of-Experts with
  // Expert Choice Routing", arXiv:2202.09368.
  int64_t per_token(Dropping dropping) const;

  // The tokens at hand: logits [T, E] of equally long sequences.
  struct Tokens {
    const Tensor& logits;
    int64_t sequences;
    const TokenSource& source;
    Dropping dropping;
    Group* parts;  // the ranks that hold the micro-batch's other tokens, or null
  };
  // None: the highest scores. In evaluation and generation no choice is forced and nothing is normalised over tokens,
  // so that a token's choice depends on no other token. A collective of `parts` for Sinkhorn. `bias` [E] float32, added
  // to scores, or undefined. Throws ShapeError if token ids are needed and missing.
  std::optional<kernels::Selection> choice(Stream& stream, const Tokens& tokens, const Tensor& bias) const;

  // The random numbers of the noise on the router's input x [B, S, D], or [T, D]. Without a step there is no noise.
  kernels::Dropout jitter(const TokenSource& source, const Shape& x, const TensorAxis* divides_tokens) const;

 private:
  kernels::RandomKeys random_keys(const Tokens& tokens) const;
  Tensor sinkhorn(Stream& stream, const Tokens& tokens) const;

  MoeConfig config_;
  uint64_t choice_site_, jitter_site_;
  double zipf_exponent_ = 0;
};

// The exponent s of a Zipf law under which expert 0's load is `imbalance` times the mean (moe_router_selection =
// "zipf"): each token visits the K of E experts that arrive first at rates (e + 1)^-s (kernels/moe/selection.h).
// imbalance in [1, E / K]. s is at most 16, at which choices are as uneven as they get.
double zipf_exponent(int64_t E, int64_t K, double imbalance);

}  // namespace witan

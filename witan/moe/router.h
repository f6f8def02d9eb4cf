// Which experts a token visits, and with what weight. The router computes in float32 (float64 models: float64).
#pragma once

#include "witan/comm/group.h"
#include "witan/kernels/capacity.h"
#include "witan/moe/config.h"
#include "witan/nn/module.h"

namespace witan {

// The immutable result of routing T tokens: shared by dispatch, experts, combine and the report.
struct Routing {
  Var weights;       // [T, K] accumulator dtype
  Tensor ids;        // [T, K] int32; -1: dropped, beyond the capacity of its expert
  Tensor counts;     // [E] int64: assignments per expert, dropped ones included; of all of a micro-batch's tokens
  Tensor kept;       // [E] int64: of these T tokens, those that are not dropped
  int64_t capacity;  // most that an expert keeps, of which at most T are of these tokens; dropless: no less than T
  Var balance_loss;  // [1] unscaled: 1 when the load is even; of the micro-batch, or the mean of its sequences'
  Var z_loss;        // [1] unscaled
};

// Training drops what is beyond an expert's capacity. Evaluation and generation never do: what a model makes of a text
// must not depend on the texts, and on how many tokens, are read together with it. Their losses of the router, which
// nobody asks for, are those of the tokens at hand.
enum class Dropping : uint8_t { by_capacity, never };

namespace ops {
// logits [T, E] accumulator dtype; mathematics in kernels/router.h. Where `parts` is a group of several ranks, these
// are a micro-batch's tokens on one of them, which all have as many; the losses and counts are of all its tokens, the
// same on every rank, and a loss's gradient on each is that of its own logits. A collective then.
// The load is balanced within each of `sequences` runs of T / sequences tokens, of which other ranks may hold more;
// with 1 over all tokens together. Throws ShapeError.
Routing route(Tape& tape, const Var& logits, int64_t topk, bool pre_softmax, Group* parts = nullptr,
              int64_t sequences = 1);

// Drops what is beyond the capacity (kernels/capacity.h). Weights and losses stay: a dropped assignment has no row, so
// that its weight has no effect and no gradient, and the balance loss counts it, as Megatron-LM's.
// Where `parts` is a group of several ranks, the tokens are a micro-batch's on one of them, which divide each of its
// `sequences` (comm/context.h): what is dropped is decided over all its tokens. A collective then.
// The first token of each sequence comes before the second of any, as in Megatron-LM, whose residual stream is [S, B,
// D]: that is the order of DropPolicy::position, and of equal weights.
Routing limit_to_capacity(Stream& stream, Routing routing, const kernels::Capacity& capacity, Group* parts = nullptr,
                          int64_t sequences = 1);
}  // namespace ops

class Router : public Module {
 public:
  // weight [E, D]
  // `context`: the ranks that divide sequences, over which losses and counts are summed and capacities hold, or null.
  // Must outlive it.
  Router(const Builder& builder, const MoeConfig& config, int64_t width, Group* context = nullptr);

  // x [T, D], or [B, S, D] of the residual stream. Where ranks of the tensor axis divide that by tokens, all of them
  // route all tokens, of which each takes its own: losses, counts and the capacity are those of one rank. Rows of B are
  // the sequences that seq_aux_loss balances; [T, D] is one.
  Routing forward(Tape& tape, const Var& x, Dropping dropping = Dropping::by_capacity);

 private:
  Routing route(Tape& tape, const Var& logits, int64_t sequences, Dropping dropping) const;
  Routing route_divided(Tape& tape, const Var& logits, const Shape& x, Dropping dropping) const;

  MoeConfig config_;
  std::optional<TensorAxis> axis_;  // none: the tokens are this rank's alone
  Group* context_;                  // null: sequences are whole
  Parameter& weight_;
};

}  // namespace witan

// The losses that a router learns from besides the model's own: they even the load of experts, and keep its logits
// small. Loads over the global batch, which one of these losses balances, are counted here too.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/moe/config.h"
#include "witan/moe/statistics.h"

namespace witan {

// Names of the losses that ops::route() records; kernels/moe/router.h has the mathematics. If there are several balance
// losses, the first in the order of BalanceLoss::Over has this name, and the others are named by their tags.
inline constexpr const char* kBalanceLoss = "load_balancing_loss";  // unscaled: 1 when the load is even
inline constexpr const char* kZLoss = "z_loss";                     // unscaled

// Declares all losses with their coefficients. If no balance loss is configured, the one over a micro-batch is recorded
// with coefficient 0.
std::vector<RouterStatistic> declare_losses(const MoeConfig& config);

// The token sets over which a micro-batch's load is balanced, in the order in which losses are recorded.
struct Balance {
  std::vector<BalanceLoss::Over> over = {BalanceLoss::Over::micro_batch};
  int64_t sequences = 1;  // equally long, one after the other
  // Returns the load [E] int64 that a loss over the global batch balances, given the assignments [E] of all of a
  // micro-batch's tokens and of this rank's part of them. Empty: the load of all its tokens.
  std::function<Tensor(const Tensor& of_all, const Tensor& of_part)> global_load = {};

  bool is(BalanceLoss::Over loss) const;  // whether `over` contains it
  bool by_sequence() const;               // whether it does over sequences, and there are several
  std::string name_of(size_t i) const;    // the name of the loss over[i]
};
Balance balance_of(const MoeConfig& config, int64_t sequences);

// The load of experts over a step's global batch so far, which global_aux_loss balances with moe_global_load = "so_far"
// (Qiu et al., "Demons in the Detail", arXiv:2501.11873; Megatron-LM's global_tokens_per_expert). The last step's load
// is a buffer of the router instead.
//
// Data-parallel ranks run their micro-batches in rounds: in round m each runs its m-th. The load of round m is that of
// all their micro-batches of the rounds 0 … m; it depends on the number of these ranks and on the order of their
// micro-batches, and on nothing else of the layout.
class GlobalLoad {
 public:
  // `rounds`: the largest number of micro-batches that this rank runs in a step. `data`: the ranks that run other
  // samples, which must outlive this object.
  GlobalLoad(Stream& stream, int64_t routers, int64_t experts, int64_t rounds, Group& data);

  // Sets the number of micro-batches that this rank runs in each following step.
  void expect(int64_t rounds) { rounds_ = rounds; }

  // counts [E] int64: a router's assignments of a micro-batch's tokens -> the load of its round, [E], which does not
  // change until the end of the step. `micro_batch` is its number in the global batch; a rank has consecutive ones. A
  // collective of `data` in the first forward of a pass; a recomputed forward gets the same load.
  Tensor add(Tape& tape, int64_t router, int64_t micro_batch, const Tensor& counts);

 private:
  Tensor load(int64_t router, int64_t round) const;

  Group& data_;
  int64_t rounds_;
  Tensor loads_;  // [routers, rounds, E]
};

}  // namespace witan

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

// Names of the losses that ops::route() records; mathematics in kernels/moe/router.h. Of several losses of balance the
// first in the order of BalanceLoss::Over has this name, and each other that of its tag.
inline constexpr const char* kBalanceLoss = "load_balancing_loss";  // unscaled: 1 when the load is even
inline constexpr const char* kZLoss = "z_loss";                     // unscaled

// All, with their coefficients. Without a loss of balance that over a micro-batch is recorded, with coefficient 0.
std::vector<RouterStatistic> declare_losses(const MoeConfig& config);

// What the load of a micro-batch's tokens is balanced over, in the order of the records.
struct Balance {
  std::vector<BalanceLoss::Over> over = {BalanceLoss::Over::micro_batch};
  int64_t sequences = 1;  // of as many tokens each, one after the other
  // The load that a loss over the global batch balances, [E] int64, given a micro-batch's assignments [E]: of all its
  // tokens, and of those of this part. None: that of all its tokens.
  std::function<Tensor(const Tensor& of_all, const Tensor& of_part)> global_load = {};

  bool is(BalanceLoss::Over loss) const;  // whether it is among them
  bool by_sequence() const;               // whether one is over sequences, and there are several
  std::string name_of(size_t i) const;    // of the loss over[i]
};
// That of a micro-batch of so many sequences.
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
  // Of so many routers and experts, of at most `rounds` micro-batches of this rank in each step. `data`: the ranks that
  // run other samples; it must outlive its use.
  GlobalLoad(Stream& stream, int64_t routers, int64_t experts, int64_t rounds, Group& data);

  // Steps have so many micro-batches of this rank from the next one on: as many as there may be until this is called.
  void expect(int64_t rounds) { rounds_ = rounds; }

  // counts [E] int64: a router's assignments of a micro-batch's tokens -> the load of its round, [E], which stays as it
  // is to the end of the step. `micro_batch` is its number in the global batch, of which a rank has consecutive ones. A
  // collective of `data` in the first forward of a pass; what is computed again finds what that found.
  Tensor add(Tape& tape, int64_t router, int64_t micro_batch, const Tensor& counts);

 private:
  Tensor load(int64_t router, int64_t round) const;

  Group& data_;
  int64_t rounds_;
  Tensor loads_;  // [routers, rounds, E]
};

}  // namespace witan

// The load of experts over a step's global batch as far as it has come, which global_aux_loss balances where
// moe_global_load = "so_far" (Qiu et al., "Demons in the Detail", arXiv:2501.11873; Megatron-LM's
// global_tokens_per_expert). The last step's load is a buffer of the router instead (moe/routers/topk.cpp).
//
// Data-parallel ranks run their micro-batches in rounds: in round m each runs its m-th. The load of round m is that of
// all their micro-batches of the rounds 0 … m; it depends on the number of these ranks and on the order of
// micro-batches, which is that of their numbers, and on nothing else of the layout.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"

namespace witan {

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

// Which experts a token visits, and with what weight: the interface of routers, and the one that a config asks for.
//
// A router is scores x selection (moe/topk.h, moe/selection.h), losses that balance it (moe/balance.h) and a capacity
// (moe/capacity.h), each of which declares the statistics that it records (moe/statistics.h).
#pragma once

#include <memory>

#include "witan/comm/group.h"
#include "witan/moe/config.h"
#include "witan/moe/routing.h"
#include "witan/nn/module.h"

namespace witan {

class Router : public Module {
 public:
  using Module::Module;

  // x [T, D], or [B, S, D] of the residual stream. Where ranks of the tensor axis each hold some of its tokens, all of
  // them route all tokens, of which each takes its own: losses, counts and the capacity are those of one rank. Rows of
  // B are the sequences that seq_aux_loss balances; [T, D] is one.
  virtual Routing forward(Tape& tape, const Var& x, Dropping dropping = Dropping::by_capacity,
                          const TokenSource& source = {}) = 0;
};

// `context`: the context-parallel ranks, over which losses and counts are summed and capacities hold, or null. Must
// outlive it.
std::unique_ptr<Router> make_router(const Builder& builder, const MoeConfig& config, int64_t width,
                                    Group* context = nullptr);

// What the routers of this config record.
std::vector<RouterStatistic> router_statistics(const MoeConfig& config);

}  // namespace witan

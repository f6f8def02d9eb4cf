// Which experts a token visits, and with what weight: the interface of routers, and the one that a config asks for.
//
// A router is scores x selection (moe/routers/topk.h, moe/routers/selection.h), losses that balance it
// (moe/routers/balance.h) and a capacity (moe/routers/capacity.h), each of which declares the statistics that it
// records (moe/statistics.h).
#pragma once

#include <memory>

#include "witan/comm/group.h"
#include "witan/moe/config.h"
#include "witan/moe/routers/global_load.h"
#include "witan/moe/routers/routes.h"
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

  // From now on its choices are told to services.routes, and taken from there where these have some; the load of the
  // global batch is counted by services.global_load. services.router is its number there.
  void attach(const ModelServices& services) override;

 protected:
  // As Balance::global_load has it, of a micro-batch of training.
  Tensor global_load(Tape& tape, int64_t micro_batch, const Tensor& counts) const {
    return global_load_ ? global_load_->add(tape, number_, micro_batch, counts) : counts;
  }

  // The experts that tokens are to visit, or undefined.
  Tensor recorded_routes() const { return routes_ ? routes_->recorded(number_) : Tensor(); }
  // Tells what was chosen, once for each forward.
  void record_routes(Tape& tape, const Tensor& ids, const Tensor& weights) const {
    if (routes_ && (tape.training_forward() || !tape.recording()))
      routes_->record(tape.stream(), number_, ids, weights);
  }

 private:
  RouteAccess* routes_ = nullptr;      // null: it chooses alone
  GlobalLoad* global_load_ = nullptr;  // null: a micro-batch is all that there is
  int64_t number_ = 0;
};

// `context`: the context-parallel ranks, over which losses and counts are summed and capacities hold, or null. Must
// outlive it.
std::unique_ptr<Router> make_router(const Builder& builder, const MoeConfig& config, int64_t width,
                                    Group* context = nullptr);

// What the routers of this config record.
std::vector<RouterStatistic> router_statistics(const MoeConfig& config);

}  // namespace witan

// Routers choose the experts of each token and weigh them: their interface, and the router that a configuration names.
//
// A router is scores x selection (moe/routers/route.h, moe/routers/selection.h), losses that balance it
// (moe/routers/balance.h) and a capacity (moe/routers/capacity.h), each of which declares the statistics that it
// records (moe/statistics.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "witan/comm/group.h"
#include "witan/moe/config.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/route.h"
#include "witan/moe/routing.h"
#include "witan/nn/module.h"

namespace witan {

// Records and replays routes. Routers call it (Router::attach) for the tokens at hand, in the order of their logits.
struct RouteAccess {
  virtual ~RouteAccess() = default;
  // ids [T, K] int32, each of a token's experts once: the experts to use instead of the router's own choice. The router
  // still forms their weights from its scores, so that it learns. Undefined: it chooses itself. A recomputed forward
  // asks again.
  virtual Tensor recorded(int64_t router) = 0;
  // Receives the experts that are used, before any are dropped: ids [T, K] int32, weights [T, K] accumulator dtype. A
  // recomputed forward does not call it.
  virtual void record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) = 0;
};

// Names of the router's statistics, beside those of ops::route() (moe/routers/route.h).
inline constexpr const char* kLoadMaxOverMean = "load_max_over_mean";  // the busiest expert's assignments over the mean
inline constexpr const char* kDeadExperts = "dead_experts";            // experts without an assignment in a step
inline constexpr const char* kExpertBias = "expert_bias";              // the bias that experts are chosen by, if any

// The largest of the experts' assignments over their mean; 0 without any.
double max_over_mean(std::span<const double> counts);

class Router : public Module {
 public:
  using Module::Module;

  // x [T, D], or [B, S, D] of the residual stream. If tensor-parallel ranks each hold some of its tokens, every rank
  // routes all tokens and keeps its own: losses, counts and the capacity are those of one rank. The B sequences are
  // those that seq_aux_loss balances; [T, D] is one sequence.
  virtual Routing forward(Tape& tape, const Var& x, Dropping dropping = Dropping::by_capacity,
                          const TokenSource& source = {}) = 0;

  // Takes services.routes, which records the router's choices and may replace them, and services.global_load, which
  // counts the load of the global batch. services.router is the router's number in both.
  void attach(const ModelServices& services) override;
  std::string_view cost_part() const override { return "router"; }

 protected:
  // Balance::global_load for a micro-batch of training.
  Tensor global_load(Tape& tape, int64_t micro_batch, const Tensor& counts) const {
    return global_load_ ? global_load_->add(tape, number_, micro_batch, counts) : counts;
  }

  // The experts that replace the router's choice, or undefined.
  Tensor recorded_routes() const { return routes_ ? routes_->recorded(number_) : Tensor(); }
  // Records the choice, once for each forward.
  void record_routes(Tape& tape, const Tensor& ids, const Tensor& weights) const {
    if (routes_ && (tape.training_forward() || !tape.recording()))
      routes_->record(tape.stream(), number_, ids, weights);
  }

 private:
  RouteAccess* routes_ = nullptr;      // null: nothing is recorded or replaced
  GlobalLoad* global_load_ = nullptr;  // null: the load is the micro-batch's
  int64_t number_ = 0;
};

// The router whose tokens choose their K best experts: weight [E, D], bias [E] with moe_router_add_bias, and Gemma 4's
// factors: input_norm.weight [D] with moe_router_input_norm and expert_scale [E] with moe_router_expert_scale. It
// computes in float32, or in float64 models in float64. `context`: the context-parallel ranks, over which losses and
// counts are summed and capacities hold, or null; it must outlive the router. `norm` gives the epsilon of its own norm.
std::unique_ptr<Router> make_router(const Builder& builder, const MoeConfig& config, int64_t width,
                                    Group* context = nullptr, const NormConfig& norm = {});

// Declares the statistics that routers of this configuration record.
std::vector<RouterStatistic> router_statistics(const MoeConfig& config);

}  // namespace witan

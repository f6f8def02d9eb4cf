#include "witan/moe/dispatchers/dispatcher.h"

#include <algorithm>

#include "witan/moe/dispatchers/dispatch.h"
#include "witan/moe/dispatchers/expert_tensor.h"
#include "witan/moe/dispatchers/host_dispatch.h"
#include "witan/moe/dispatchers/receive_buffers.h"
#include "witan/moe/dispatchers/replicas.h"

namespace witan {
namespace {

// Runs experts, of whose features each rank of the expert tensor axis may have a share.
class ExpertRunner {
 public:
  explicit ExpertRunner(const ModelAxes& axes)
      : expert_tensor_(ModelAxes::size(axes.expert_tensor) > 1 ? axes.expert_tensor : nullptr) {}

  Group* expert_tensor() const { return expert_tensor_; }  // null: it divides nothing
  // Whether experts may read the tokens where they lie: all rows are this rank's own.
  bool in_place(const DispatchMap& map, const ops::ExpertReplicas& replicas) const {
    return !expert_tensor_ && !map.group && !map.peers && !replicas.any();
  }

  // The receive buffer's rows, [capacity, D].
  Var run(Tape& tape, const Dispatched& in, const DispatchMap& map, const ops::ExpertReplicas& replicas,
          const TokenDispatcher::RunExperts& experts) const {
    if (!expert_tensor_) return experts(tape, in, {map.groups, replicas});
    const MergedBuffers merged = merge_buffers(tape.stream(), map, *expert_tensor_);
    const Dispatched all = gather_buffers(tape, in, merged);
    return scatter_sums(tape, experts(tape, all, {merged.groups, replicas}), merged);
  }

 private:
  Group* expert_tensor_;  // null: experts' matrices are whole
};

// Rows travel to the ranks that hold their experts: by an uneven all-to-all, or straight into those ranks' memory.
// Those for another host travel by way of one rank there, so that a token travels to a host once.
class RowDispatcher : public TokenDispatcher {
 public:
  explicit RowDispatcher(const ModelAxes& axes) : expert_(*axes.expert), hosts_(axes.expert_hosts), runner_(axes) {}

  Var forward(Tape& tape, const Var& tokens, const Routing& given, const RunExperts& experts,
              const DispatchLimits& limits, const ops::Meanwhile* meanwhile) override {
    const auto& [buffers, slots] = limits;
    const Routing routing =
        slots > 0 ? place_replicas(tape.stream(), given, slots, expert_, runner_.expert_tensor()) : given;
    // The backward recomputes each of several passes, with nothing beside it.
    const bool several = buffers && buffers->passes() > 1;
    const auto pass = [this, experts, beside = several ? nullptr : meanwhile](Tape& on, const Var& x,
                                                                              const Routing& of) {
      return hosts_.any() ? by_hosts(on, x, of, experts, beside) : once(on, x, of, experts, beside);
    };
    if (buffers && buffers->bounds() && expert_.size() > 1)
      return buffers->pass(tape, tokens, routing, expert_, hosts_, pass);
    return pass(tape, tokens, routing);
  }

 private:
  Var once(Tape& tape, const Var& tokens, const Routing& routing, const RunExperts& experts,
           const ops::Meanwhile* meanwhile) {
    const DispatchMap map = make_dispatch_map(tape.stream(), routing, expert_);
    return through(tape, tokens, routing.weights, map, routing.replicas, experts, meanwhile);
  }

  Var by_hosts(Tape& tape, const Var& tokens, const Routing& routing, const RunExperts& experts,
               const ops::Meanwhile* meanwhile) {
    const HostMap to_hosts = make_host_map(tape.stream(), routing, hosts_);
    DispatchMap map = make_dispatch_map(tape.stream(), to_hosts.arrived, *hosts_.within);
    // On average as many assignments arrive as leave, however many tokens may arrive.
    map.groups.expected_rows = std::min(map.groups.expected_rows, routing.ids.elements());
    const HostArrivals in = copy_to_hosts(tape, tokens, routing.weights, to_hosts, meanwhile);
    return sum_over_hosts(tape, through(tape, in.tokens, in.weights, map, routing.replicas, experts, nullptr),
                          to_hosts);
  }

  // tokens [T, D], weights [T, K] -> [T, D], through the experts of the map's ranks
  Var through(Tape& tape, const Var& tokens, const Var& weights, const DispatchMap& map,
              const ops::ExpertReplicas& replicas, const RunExperts& experts, const ops::Meanwhile* meanwhile) {
    if (runner_.in_place(map, replicas))
      return experts(tape, dispatch_in_place(tape, tokens, weights, map), {map.groups});
    const Dispatched in = dispatch(tape, tokens, weights, map, meanwhile);
    return combine(tape, runner_.run(tape, in, map, replicas, experts), map);
  }

  Group& expert_;
  const ExpertHosts hosts_;
  const ExpertRunner runner_;
};

// Every rank gets all tokens, of which its experts take theirs; outputs are summed over the ranks.
class AllGatherDispatcher : public TokenDispatcher {
 public:
  explicit AllGatherDispatcher(const ModelAxes& axes) : expert_(*axes.expert), runner_(axes) {}

  Var forward(Tape& tape, const Var& tokens, const Routing& routing, const RunExperts& experts, const DispatchLimits&,
              const ops::Meanwhile*) override {
    const DispatchMap map = make_gathered_map(tape.stream(), routing, expert_);
    const Dispatched in =
        dispatch(tape, gather_tokens(tape, tokens, expert_), gather_tokens(tape, routing.weights, expert_), map);
    return scatter_token_sums(tape, combine(tape, runner_.run(tape, in, map, {}, experts), map), expert_);
  }

 private:
  Group& expert_;
  const ExpertRunner runner_;
};

}  // namespace

std::unique_ptr<TokenDispatcher> make_dispatcher(const MoeConfig& config, const ModelAxes& axes) {
  if (config.moe_token_dispatcher_type == "allgather" && axes.expert->size() > 1)
    return std::make_unique<AllGatherDispatcher>(axes);
  return std::make_unique<RowDispatcher>(axes);
}

}  // namespace witan

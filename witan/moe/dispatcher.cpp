#include "witan/moe/dispatcher.h"

#include "witan/moe/expert_tensor.h"

namespace witan {
namespace {

// Rows go to the ranks that hold their experts: by an uneven all-to-all, or straight into those ranks' memory.
class RowDispatcher : public TokenDispatcher {
 public:
  explicit RowDispatcher(const ModelAxes& axes)
      : expert_(*axes.expert), expert_tensor_(ModelAxes::size(axes.expert_tensor) > 1 ? axes.expert_tensor : nullptr) {}

  Var forward(Tape& tape, const Var& tokens, const Routing& routing, const RunExperts& experts) override {
    const DispatchMap map = make_dispatch_map(tape.stream(), routing, expert_);
    const Dispatched in = dispatch(tape, tokens, routing.weights, map);
    return combine(tape, through_experts(tape, in, map, experts), map);
  }

 private:
  // The pool's rows, [capacity, D].
  Var through_experts(Tape& tape, const Dispatched& in, const DispatchMap& map, const RunExperts& experts) {
    if (!expert_tensor_) return experts(tape, in, map.groups);
    const MergedPools merged = merge_pools(tape.stream(), map, *expert_tensor_);
    const Dispatched all = gather_pools(tape, in, merged);
    return scatter_sums(tape, experts(tape, all, merged.groups), merged);
  }

  Group& expert_;
  Group* expert_tensor_;  // null: experts' matrices are whole
};

}  // namespace

std::unique_ptr<TokenDispatcher> make_dispatcher(const ModelAxes& axes) {
  return std::make_unique<RowDispatcher>(axes);
}

}  // namespace witan

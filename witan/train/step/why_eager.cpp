#include "witan/train/step/why_eager.h"

#include "witan/moe/dispatchers/replicas.h"
#include "witan/moe/layer/experts.h"
#include "witan/optim/optimizer.h"
#include "witan/train/step/features/bounded_experts.h"

namespace witan {

std::string why_eager(const RunConfig& config, const Groups& groups, const ParamGroups& param_groups) {
  const auto& moe = config.model.moe;
  if (!config.parallel.cuda_graph) return "cuda_graph = false";
  if (config.train.check_states) return "check_states = true compares ranks on the host during the step";
  if (moe.num_experts > 0 && expert_backend(moe) == ExpertBackend::sequential)
    return cat(moe.moe_grouped_gemm ? "moe_expert_backend = sequential" : "moe_grouped_gemm = false",
               " reads the row count of each expert on the host");
  const int64_t expert_ranks = groups.of(Axis::expert).size();
  if (moe.moe_token_dispatcher_type == "alltoall" && expert_ranks > 1 && !experts_go_by_peers(groups, moe)) {
    if (moe.moe_exchange_factor == 0)
      return cat("experts' rows are exchanged over NCCL, which needs their counts on the host",
                 config.parallel.peer_memory ? "" : " (WITAN_COMM_PEERS = 0)",
                 "; moe_exchange_factor = 1.5 does without");
    if (replica_slots(moe, expert_ranks) > 0)
      return "moe_replicated_experts copies experts over NCCL, which needs the rows of each on the host";
  }
  for (const ParamGroup& group : param_groups.all())
    if (optimizer_traits(group.settings.optimizer).eager)
      return cat("optimizer = ", group.settings.optimizer, " makes preconditioners in some steps alone");
  return "";
}

}  // namespace witan

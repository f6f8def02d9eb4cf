#include "witan/train/step/recorded_step.h"

#include <optional>

#include "witan/moe/dispatchers/replicas.h"
#include "witan/moe/layer/experts.h"
#include "witan/optim/optimizer.h"
#include "witan/train/step/features/bounded_experts.h"

namespace witan {
namespace {

// Records the stream's launches while in scope.
class WatchedLaunches {
 public:
  WatchedLaunches(Stream& stream, LaunchObserver* launches) : stream_(stream) { stream_.watch_launches(launches); }
  ~WatchedLaunches() { stream_.watch_launches(nullptr); }
  WatchedLaunches(const WatchedLaunches&) = delete;
  WatchedLaunches& operator=(const WatchedLaunches&) = delete;

 private:
  Stream& stream_;
};

}  // namespace

std::string why_eager(const RunConfig& config, const Groups& groups, const ParamGroups& param_groups) {
  const auto& moe = config.model.moe;
  if (!config.parallel.cuda_graph) return "cuda_graph = false";
  if (config.train.check_states) return "check_states = true compares ranks on the host during the step";
  if (moe.num_experts > 0 && expert_backend(moe) == ExpertBackend::sequential)
    return cat(moe.moe_grouped_gemm ? "moe_expert_backend = sequential" : "moe_grouped_gemm = false",
               " reads the row count of each expert on the host");
  const int64_t expert_ranks = groups.of(Axis::expert).size();
  if (moe.moe_token_dispatcher_type == "alltoall" && expert_ranks > 1 && !counts_stay_on_device(groups, moe)) {
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

void RecordedStep::reset() {
  graphs_.clear();
  noted_graph_.reset();
  warm_ = false;
}

void RecordedStep::note_launches(LaunchTrace* launches) {
  noted_graph_.reset();
  launches_ = launches;
}

void RecordedStep::in_ranges(const Compute& step) {
  if (ranges_ == nullptr || stream_.launches() != nullptr) return step();
  const WatchedLaunches shown(stream_, ranges_);
  step();
  ranges_->close();
}

void RecordedStep::queue(const Compute& step, Noted noted) {
  if (launches_ == nullptr || noted == Noted::no) return in_ranges(step);
  noted_graph_.reset();
  launches_->clear(LaunchTrace::Work::queued);
  launches_->start(*stream_.queue());
  const WatchedLaunches watched(stream_, launches_);
  step();
}

void RecordedStep::queue_first(const Compute& step) {
  warm_ = true;
  queue(step);
}

void RecordedStep::replay(const Parts& parts, const Compute& step) {
  if (launches_ != nullptr) return replay_noted(parts, step);
  std::unique_ptr<Graph>& graph = graphs_[parts];
  if (!graph) graph = record(*stream_.queue(), [&] { in_ranges(step); });
  graph->launch();
}

void RecordedStep::replay_noted(const Parts& parts, const Compute& step) {
  if (!noted_graph_ || noted_parts_ != parts) {
    noted_graph_.reset();  // before the timestamps that it writes
    launches_->clear(LaunchTrace::Work::captured);
    noted_parts_ = parts;
    const WatchedLaunches watched(stream_, launches_);
    noted_graph_ = record(*stream_.queue(), step);
  }
  launches_->start(*stream_.queue());
  noted_graph_->launch();
}

}  // namespace witan

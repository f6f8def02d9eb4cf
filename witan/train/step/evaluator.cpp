#include "witan/train/step/evaluator.h"

#include <algorithm>
#include <utility>

#include "witan/tensor/trace_context.h"
#include "witan/train/step/context_part.h"
#include "witan/train/step/engine_parts.h"

namespace witan {

Evaluator::Evaluator(Stream& stream, const Groups& groups, const RunConfig& config, const Stages& stages,
                     Transformer& model, UnitStore& units)
    : stream_(stream), groups_(groups), config_(config), stages_(stages), model_(model), units_(units) {}

int64_t Evaluator::together() const {
  return stages_.stages() == 1 ? 1 : config_.micro_batches() / groups_.layout().data_ranks();
}

StageEvaluation Evaluator::evaluate_run(std::span<const Batch> run, const ReportSizes& sizes, Repetition* repetition) {
  Group& pipeline = groups_.of(Axis::pipeline);
  const Pipeline passes{stages_.stages(), stages_.chunks(), together(), Pipeline::Passes::forward};
  PipelineChannel channel(pipeline, passes, residual_shape(config_, run.front()), config_.model.compute_dtype(),
                          stages_.stages() == 1 ? nullptr : repetition);
  return witan::evaluate(stream_, model_, channel, run, sizes, pipeline.rank());
}

// Runs of together() micro-batches, each of which begins with the memory that the one before it began with: however
// many there are, they take what one takes. A last run that is short is filled up, and what fills it counts nothing.
Evaluation Evaluator::evaluate(const std::vector<Batch>& whole, Repetition* repetition) {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::evaluation);
  const Group& context = groups_.of(Axis::context);
  const std::vector<Batch> parts = context.size() > 1 ? context_part(whole, context) : std::vector<Batch>();
  const std::span<const Batch> batches = context.size() > 1 ? parts : whole;
  const std::string before = stream_.set_part("evaluation");
  const auto most = static_cast<size_t>(together());
  ModelConfig evaluated = config_.model;
  evaluated.mtp_num_layers = 0;  // they predict what only training looks at
  const ReportSizes sizes(evaluated, stages_, static_cast<int64_t>(most));
  RouterSums routers(sizes.statistics(), sizes.blocks());
  units_.begin_passes();
  std::vector<double> own;  // of each batch: nats, targets
  for (size_t begin = 0; begin < batches.size(); begin += most) {
    std::vector<Batch> filled;
    std::span<const Batch> run = batches.subspan(begin, std::min(most, batches.size() - begin));
    const size_t real = run.size();
    if (real < most) {
      filled.assign(run.begin(), run.end());
      filled.resize(most, run.back());
      run = filled;
    }
    const StageEvaluation found = evaluate_run(run, sizes, repetition);
    for (size_t i = 0; i < real; ++i) own.insert(own.end(), {found.losses[i].nats, found.losses[i].targets});
    for (size_t i = 0; i < std::min(real, found.routers.size()); ++i) add_routers(routers, sizes, found.routers[i]);
    units_.end_pass();
  }
  units_.give_back();
  stream_.set_part(before);
  // Batch by batch, so that this too takes what one takes. Summed rank by rank.
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < own.size(); i += 2) all.push_back(gather({own[i], own[i + 1]}));
  Evaluation sum;
  for (size_t at = 0; !all.empty() && at < all.front().size(); at += 2)
    for (const std::vector<double>& batch : all) {
      sum.nats += batch[at];
      sum.targets += batch[at + 1];
    }
  if (sizes.blocks() > 0) sum.router = gather(routers);
  return sum;
}

// The values of all ranks with tokens of their own, in all stages, in the order of ranks.
std::vector<double> Evaluator::gather(const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  Group& ranks = groups_.over(groups_.layout().loss_reporting_axes());
  const Tensor all = stream_.empty({ranks.size() * count}, DType::f64, MemoryTag::communication);
  const Tensor own = all.narrow(0, ranks.rank() * count, count);
  stream_.write(own, values.data());
  ranks.all_gather(stream_, all, own);
  if (stream_.is_meta()) return values;
  std::vector<double> gathered(static_cast<size_t>(all.elements()));
  stream_.read(gathered.data(), all);
  return gathered;
}

// `found`: of a micro-batch that this stage looked at. Context-parallel ranks all know the same of it, and the first
// counts.
void Evaluator::add_routers(RouterSums& sums, const ReportSizes& sizes, std::span<const double> found) const {
  if (groups_.of(Axis::context).rank() > 0) return;
  const auto values = static_cast<size_t>(sizes.statistics().values());
  size_t at = 0;
  for (const int64_t block : sizes.held(groups_.of(Axis::pipeline).rank())) {
    sums.add(block, found.subspan(at, values));
    at += values;
  }
}

StepStatistics Evaluator::gather(RouterSums& sums) {
  const auto count = static_cast<int64_t>(sums.values().size());
  const Tensor all = stream_.empty({count}, DType::f64, MemoryTag::communication);
  stream_.write(all, sums.values().data());
  if (stream_.is_meta()) return {};  // it comes once for an evaluation: a plan counts what each micro-batch takes
  groups_.over(groups_.layout().loss_reporting_axes()).all_reduce(stream_, all);
  stream_.read(sums.values().data(), all);
  return sums.statistics();
}

}  // namespace witan

#include "witan/parallel/schedule.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

using Pass = Work::Pass;

// Size of the first group, which is the largest.
int64_t largest_group(const Pipeline& pipeline) {
  const int64_t groups = std::max<int64_t>(1, pipeline.micro_batches / pipeline.stages);
  return (pipeline.micro_batches + groups - 1) / groups;
}

int64_t warm_up(const Pipeline& pipeline, int stage) {
  const int64_t all = pipeline.micro_batches * pipeline.chunks, later_stages = pipeline.stages - stage - 1;
  if (pipeline.passes == Pipeline::Passes::forward) return all;
  if (pipeline.chunks == 1) return std::min(all, later_stages);
  return std::min(all, 2 * later_stages + (pipeline.chunks - 1) * largest_group(pipeline));
}

// Micro-batch and chunk of every forward, in order; backwards follow the same order with the chunks reversed.
std::vector<std::pair<int64_t, int>> order_of(const Pipeline& pipeline) {
  std::vector<std::pair<int64_t, int>> order;
  const int64_t groups = std::max<int64_t>(1, pipeline.micro_batches / pipeline.stages);
  const int64_t size = pipeline.micro_batches / groups, larger = pipeline.micro_batches % groups;
  for (int64_t group = 0, begin = 0; group < groups; ++group) {
    const int64_t end = begin + size + (group < larger ? 1 : 0);
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk)
      for (int64_t micro_batch = begin; micro_batch < end; ++micro_batch) order.emplace_back(micro_batch, chunk);
    begin = end;
  }
  return order;
}

}  // namespace

void Pipeline::validate() const {
  const auto at_least_one = [](const char* what, int64_t number) {
    require<ConfigError>(number >= 1, "pipeline: ", number, " ", what, "; the nearest that works is 1");
  };
  at_least_one("stages", stages);
  at_least_one("micro-batches", micro_batches);
  at_least_one("virtual stages of a rank", chunks);
  require<ConfigError>(
      chunks == 1 || stages > 1, "pipeline: ", chunks,
      " virtual stages, but one pipeline stage: interleaving needs several; the nearest that works is 1");
}

std::vector<Work> schedule_of(const Pipeline& pipeline, int stage) {
  const auto order = order_of(pipeline);
  const auto forward = [&](size_t i) { return Work{Pass::forward, order[i].first, order[i].second}; };
  const auto backward = [&](size_t i) {
    return Work{Pass::backward, order[i].first, pipeline.chunks - 1 - order[i].second};
  };
  const auto ahead = static_cast<size_t>(warm_up(pipeline, stage));
  std::vector<Work> schedule;
  for (size_t i = 0; i < ahead; ++i) schedule.push_back(forward(i));
  if (pipeline.passes == Pipeline::Passes::forward) return schedule;
  for (size_t i = ahead; i < order.size(); ++i) {
    schedule.push_back(forward(i));
    schedule.push_back(backward(i - ahead));
  }
  for (size_t i = order.size() - ahead; i < order.size(); ++i) schedule.push_back(backward(i));
  return schedule;
}

std::optional<StageWork> source_of(const Pipeline& pipeline, const StageWork& work) {
  StageWork source = work;
  const bool forward = work.work.pass == Pass::forward;
  source.stage += forward ? -1 : 1;
  if (source.stage < 0 || source.stage == pipeline.stages) {
    source.stage = forward ? pipeline.stages - 1 : 0;
    source.work.chunk += forward ? -1 : 1;
  }
  if (source.work.chunk < 0 || source.work.chunk == pipeline.chunks) return std::nullopt;
  return source;
}

std::optional<StageWork> target_of(const Pipeline& pipeline, const StageWork& work) {
  // Gradients go to where the activations came from.
  StageWork turned = work;
  turned.work.pass = work.work.pass == Pass::forward ? Pass::backward : Pass::forward;
  auto target = source_of(pipeline, turned);
  if (target) target->work.pass = work.work.pass;
  return target;
}

int64_t most_in_flight(const Pipeline& pipeline, int stage) {
  if (pipeline.passes == Pipeline::Passes::forward) return 0;
  return std::min(pipeline.micro_batches * pipeline.chunks, warm_up(pipeline, stage) + 1);
}

double bubble_over_work(const Pipeline& pipeline) {
  const int64_t stages = pipeline.stages, micro_batches = pipeline.micro_batches, chunks = pipeline.chunks;
  const int64_t all = chunks * std::max(micro_batches, stages) + std::min(micro_batches, stages) - 1;
  return static_cast<double>(all) / static_cast<double>(chunks * micro_batches) - 1;
}

}  // namespace witan

#include "witan/parallel/pipeline_walk.h"

#include <algorithm>
#include <cassert>

namespace witan {
namespace {

// The period of the steps in micro-batches: 1, or with several chunks the size of a group (schedule.h).
int64_t unit(const Pipeline& pipeline) {
  return pipeline.chunks == 1 ? 1 : pipeline.stages;
}

// The micro-batch after which steps repeat: the last of the first group of as many as there are stages.
int64_t first_repeated(const Pipeline& pipeline) {
  const int64_t stages = pipeline.stages;
  const int64_t in_larger_groups = pipeline.chunks == 1 ? 0 : pipeline.micro_batches % stages * (stages + 1);
  return in_larger_groups + stages - 1;
}

// The number of micro-batches at the end during which steps no longer repeat: the first stages run out of new work
// while those ahead are still in flight. With several chunks two groups are in flight behind a finished one, and inputs
// of a third have arrived.
int64_t emptying(const Pipeline& pipeline) {
  return (pipeline.chunks == 1 ? 1 : 3) * pipeline.stages;
}

// Micro-batches within which memory must repeat, found by tests with a margin: it repeats once as many are in flight as
// ever will be (tensor/arena.h, Pool).
int64_t watched(const Pipeline& pipeline) {
  constexpr int64_t kRounds = 3, kMore = 8;
  return (kRounds * pipeline.stages + kMore * unit(pipeline)) / unit(pipeline) * unit(pipeline);
}

}  // namespace

Pipeline shortened(const Pipeline& pipeline) {
  Pipeline some = pipeline;
  const int64_t enough = first_repeated(pipeline) + 1 + watched(pipeline) + emptying(pipeline);
  if (enough < pipeline.micro_batches)
    some.micro_batches -= (pipeline.micro_batches - enough) / unit(pipeline) * unit(pipeline);
  return some;
}

PipelineWalk::PipelineWalk(const Pipeline& pipeline, const std::vector<PipelineStep>& steps, Repetition* repetition)
    : pipeline_(pipeline),
      steps_(steps),
      repetition_(repetition),
      kept_(repetition != nullptr ? shortened(pipeline).micro_batches : pipeline.micro_batches) {
  if (repetition_ == nullptr) return;
  numbers_differ_ = true;
  repetition_->begin();
}

const PipelineStep* PipelineWalk::next() {
  if (repetition_ != nullptr && at_ > 0) look_back();
  if (at_ == steps_.size()) return nullptr;
  const PipelineStep& step = steps_[at_++];
  if (!numbers_differ_) return &step;
  step_ = step;
  auto& number = step_.work.micro_batch;
  number = numbers_.try_emplace({number, step_.work.chunk}, number + added_).first->second;
  return &step_;
}

bool PipelineWalk::ends(const PipelineStep& step, int64_t micro_batch) const {
  const Work last = pipeline_.passes == Pipeline::Passes::both
                        ? Work{Work::Pass::backward, micro_batch, 0}
                        : Work{Work::Pass::forward, micro_batch, pipeline_.chunks - 1};
  return step.kind == PipelineStep::Kind::compute && step.work == last;
}

size_t PipelineWalk::place_after(int64_t micro_batch) const {
  const auto last = std::ranges::find_if(steps_, [&](const PipelineStep& step) { return ends(step, micro_batch); });
  assert(last != steps_.end());
  return static_cast<size_t>(last - steps_.begin()) + 1;
}

// If the walk has steps for all micro-batches it needs no period: it takes them all if it finds none.
void PipelineWalk::look_back() {
  const int64_t micro_batch = steps_[at_ - 1].work.micro_batch, since = micro_batch - first_repeated(pipeline_);
  if (!ends(steps_[at_ - 1], micro_batch) || since < 0 || since % unit(pipeline_) != 0) return;
  const bool has_all_steps = kept_ == pipeline_.micro_batches;
  if (has_all_steps && pipeline_.micro_batches - 1 - micro_batch < emptying(pipeline_) + unit(pipeline_)) {
    repetition_ = nullptr;
    return;
  }
  const int64_t period = repetition_->period(micro_batch);
  if (period > 0 || (since >= watched(pipeline_) && !has_all_steps)) leave_out(micro_batch, period);
}

// Continues at the position from which the remaining steps have exactly the micro-batches that are not skipped. Those
// in flight keep their numbers; those that begin later get the pipeline's last numbers.
void PipelineWalk::leave_out(int64_t micro_batch, int64_t period) {
  const int64_t behind = pipeline_.micro_batches - 1 - micro_batch, no_steps = pipeline_.micro_batches - kept_;
  const int64_t count = period > 0 ? (behind - emptying(pipeline_)) / period * period : no_steps;
  const int64_t moved = count - no_steps;
  repetition_->leave_out(count, period);
  repetition_ = nullptr;
  at_ = place_after(micro_batch + moved);
  added_ = no_steps;
  std::map<std::pair<int64_t, int>, int64_t> numbers;
  for (const auto& [work, number] : numbers_) numbers[{work.first + moved, work.second}] = number;
  numbers_ = std::move(numbers);
}

}  // namespace witan

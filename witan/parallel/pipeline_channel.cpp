#include "witan/parallel/pipeline_channel.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "witan/base/error.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using Kind = PipelineStep::Kind;

// Removes and returns the tensor; an undefined one if there is none.
Tensor taken_from(std::map<Work, Tensor>& tensors, const Work& work) {
  auto node = tensors.extract(work);
  return node.empty() ? Tensor() : std::move(node.mapped());
}

}  // namespace

PipelineChannel::PipelineChannel(Group& group, const Pipeline& pipeline, const Shape& shape, DType dtype,
                                 Repetition* repetition)
    : group_(group), pipeline_(pipeline), shape_(shape), dtype_(dtype), repetition_(repetition) {
  pipeline.validate();
  require<ConfigError>(pipeline.stages == group.size(), "pipeline: ", pipeline.stages, " stages on axis ", group.name(),
                       " of ", group.size(), " ranks; the nearest that works is ", group.size());
  steps_ = std::move(
      pipeline_steps(repetition == nullptr ? pipeline : shortened(pipeline))[static_cast<size_t>(group.rank())]);
}

void PipelineChannel::run(Stream& stream, StageModel& model) {
  std::map<Work, Tensor> received, unsent;
  // With one micro-batch in flight at a time, best fit finds the holes left by the previous one.
  const bool uses_pool = most_in_flight(pipeline_, group_.rank()) > 1;
  Arena::Pool pool(stream.arena());
  std::map<std::tuple<Kind, Work::Pass, int>, Arena::Pool::Pass> known;  // passes, and receives for them
  const TraceContext::Phase outer = stream.trace_context().phase;        // keeps the phase of an evaluation
  const TraceContext::Phase passes = outer == TraceContext::Phase::none ? TraceContext::Phase::forward : outer;
  PipelineWalk walk(pipeline_, steps_, repetition_);
  while (const PipelineStep* step = walk.next()) {
    const auto& [kind, work, peer] = *step;
    const bool forward = work.pass == Work::Pass::forward;
    const TraceContextScope trace_context(stream, forward ? passes : TraceContext::Phase::backward, work.micro_batch);
    trace_context->chunk = work.chunk;
    const Arena::Pool::Scope memory(pool, uses_pool ? &known[{kind, work.pass, work.chunk}] : nullptr);
    switch (kind) {
      case Kind::compute:
        if (Tensor output = compute(model, work, taken_from(received, work)); output.defined())
          unsent.emplace(work, std::move(output));
        break;
      case Kind::send:
        group_.send(stream, taken_from(unsent, work), peer);
        break;
      case Kind::recv: {
        const Tensor input = stream.empty(shape_, dtype_);
        group_.recv(stream, input, peer);
        received.emplace(work, input);
      }
    }
  }
}

Tensor PipelineChannel::compute(StageModel& model, const Work& work, Tensor input) const {
  const bool forward = work.pass == Work::Pass::forward;
  Tensor output = forward ? model.forward(work.micro_batch, work.chunk, std::move(input))
                          : model.backward(work.micro_batch, work.chunk, std::move(input));
  check_output(work, output);
  return output;
}

// Check here, so that the error names this stage and not a peer.
void PipelineChannel::check_output(const Work& work, const Tensor& output) const {
  const bool wanted = target_of(pipeline_, {group_.rank(), work}).has_value();
  const bool fits =
      wanted ? output.defined() && output.dtype() == dtype_ && output.shape() == shape_ : !output.defined();
  if (fits) return;
  const auto found = output.defined() ? cat(output.dtype(), " ", output.shape()) : std::string("nothing");
  const auto expected = wanted ? cat(dtype_, " ", shape_) : std::string("nothing");
  throw ShapeError(cat("pipeline: ", work.pass == Work::Pass::forward ? "forward" : "backward", " of micro-batch ",
                       work.micro_batch, " through chunk ", work.chunk, " of stage ", group_.rank(), " must return ",
                       expected, ", got ", found));
}

}  // namespace witan

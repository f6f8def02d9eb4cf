#include "witan/train/step/evaluate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "witan/base/error.h"
#include "witan/kernels/common/step_report.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/step/objective.h"
#include "witan/train/step/rank_model.h"
#include "witan/train/step/reference.h"
#include "witan/train/step/step_inputs.h"

namespace witan {

namespace {

template <class T>
Tensor upload(Stream& stream, const std::vector<T>& values, const Shape& shape) {
  Tensor out = stream.empty(shape, dtype_of<T>());
  stream.write(out, values.data());
  return out;
}

// tokens, positions and sequence ids [B, S]. On the meta device the batch needs only its sizes.
ModelInput upload(Stream& stream, const Batch& batch, bool padded) {
  const Shape shape{batch.sequences, batch.sequence_length};
  ModelInput input{upload(stream, batch.tokens, shape),
                   {upload(stream, batch.positions, shape), upload(stream, batch.sequence_ids, shape)}};
  input.padded = padded;
  return input;
}

// targets [T] int32, T = B S, and each one's weight in the loss, [T] of `dtype`.
struct Targets {
  Tensor targets, weights;
};

Targets upload_targets(Stream& stream, const Batch& batch, DType dtype) {
  const Shape shape{batch.sequences * batch.sequence_length};
  const Tensor weights = stream.empty(shape, dtype);
  dispatch_floating(dtype, [&]<class A>() {
    std::vector<A> values;
    for (const float mask : batch.loss_mask) values.push_back(A(static_cast<double>(mask)));
    stream.write(weights, values.data());
  });
  return {upload(stream, batch.targets, shape), weights};
}

// Waits for the stream; 0 on the meta device.
double read_scalar(Stream& stream, const Tensor& tensor) {
  return dispatch_floating(tensor.dtype(), [&]<class A>() {
    A value = A(0.0f);
    stream.read(&value, tensor);
    return static_cast<double>(value);
  });
}

ModelInput input_of(Stream& stream, const Batch& batch, bool padded, Dropping dropping) {
  ModelInput input = upload(stream, batch, padded);
  input.dropping = dropping;
  return input;
}

Evaluation evaluation_of(Tape& tape, Transformer& model, const Batch& batch, Var logits) {
  Stream& stream = tape.stream();
  const auto [ids, weights] = upload_targets(stream, batch, accumulator(model.config().compute_dtype()));
  const ops::CrossEntropy entropy = model.loss(tape, std::move(logits), ids, weights);
  return {read_scalar(stream, entropy.loss.value()), static_cast<double>(batch.loss_tokens)};
}

// The sums of an objective's own loss, of pairs of documents.
Evaluation comparison_of(const Objective& objective, const ObjectivePass& pass, const Batch& batch, ModelOutput& out) {
  Stream& stream = pass.tape.stream();
  const std::vector<Tensor> sums = objective.evaluate(pass, out);
  constexpr double kTexts = 2;
  Evaluation found{read_scalar(stream, sums.front()), static_cast<double>(batch.loss_sequences) / kTexts};
  const std::vector<std::string> names = objective.evaluated();
  for (size_t i = 0; i < names.size(); ++i) found.figures.emplace_back(names[i], read_scalar(stream, sums[i + 1]));
  return found;
}

class EvaluationPasses : public StageModel {
 public:
  EvaluationPasses(Stream& stream, Transformer& model, std::span<const Batch> batches, const ReportSizes& sizes,
                   int stage)
      : losses_(batches.size()), stream_(stream), model_(model), batches_(batches), sizes_(sizes), stage_(stage) {
    const int64_t all = static_cast<int64_t>(batches.size()) * values();
    if (all > 0) routers_ = stream.empty({all}, DType::f64, MemoryTag::communication);
  }

  Tensor forward(int64_t micro_batch, int chunk, Tensor x) override {
    Tape tape(stream_, Tape::Mode::off);
    const auto i = static_cast<size_t>(micro_batch);
    Var in = x.defined() ? tape.constant(std::move(x)) : Var();
    // Rows that fill up the last batch are padding, which experts do not compute.
    const ModelInput input = input_of(stream_, batches_[i], true, Dropping::measured);
    ModelOutput out = model_.forward(tape, input, chunk, std::move(in));
    collect(micro_batch, chunk, out);
    if (out.x.defined()) return out.x.value();
    losses_[i] = judge(tape, micro_batch, out);
    return {};
  }
  Tensor backward(int64_t, int, Tensor) override {
    throw Error(ExitCode::internal, "an evaluation has no backward pass");
  }

  StageEvaluation found() {
    StageEvaluation all{std::move(losses_), {}};
    if (!routers_.defined() || stream_.is_meta()) return all;
    std::vector<double> read(static_cast<size_t>(routers_.elements()));
    stream_.read(read.data(), routers_);
    for (auto begin = read.begin(); begin != read.end(); begin += values())
      all.routers.emplace_back(begin, begin + values());
    return all;
  }

 protected:
  // The losses of the last stage's output.
  virtual Evaluation judge(Tape& tape, int64_t micro_batch, ModelOutput& out) {
    return evaluation_of(tape, model_, batches_[static_cast<size_t>(micro_batch)], std::move(out.logits));
  }

 private:
  int64_t values() const { return static_cast<int64_t>(sizes_.held(stage_).size()) * sizes_.statistics().values(); }
  void collect(int64_t micro_batch, int chunk, const ModelOutput& out) const {
    std::vector<Tensor> sources;
    for (const RouterRecord& router : out.routers)
      for (const Tensor& value : sizes_.statistics().pack(router)) sources.push_back(value);
    if (sources.empty()) return;
    int64_t begin = micro_batch * values();
    for (int before = 0; before < chunk; ++before)
      begin += static_cast<int64_t>(sizes_.held(stage_, before).size()) * sizes_.statistics().values();
    const int64_t count = static_cast<int64_t>(out.routers.size()) * sizes_.statistics().values();
    kernels::collect(stream_, routers_.narrow(0, begin, count), sources);
  }

  std::vector<Evaluation> losses_;  // by batch
  Stream& stream_;
  Transformer& model_;
  std::span<const Batch> batches_;
  const ReportSizes& sizes_;
  const int stage_;
  Tensor routers_;  // [batches * values()] float64; undefined: the stage has no experts
};

// Evaluates an objective's own loss, of pairs of documents.
class PreferencePasses final : public EvaluationPasses {
 public:
  struct Of {
    const Objective& objective;
    const StepInputs& inputs;
    const ReferencePasses* reference;  // null: none
    Group& context;
  };
  PreferencePasses(Stream& stream, Transformer& model, std::span<const Batch> batches, const ReportSizes& sizes,
                   int stage, const Of& of)
      : EvaluationPasses(stream, model, batches, sizes, stage), model_(model), batches_(batches), of_(of) {}

 private:
  Evaluation judge(Tape& tape, int64_t micro_batch, ModelOutput& out) override {
    const ObjectivePass pass{.tape = tape,
                             .model = model_,
                             .inputs = of_.inputs,
                             .micro_batch = micro_batch,
                             .scaled_losses = false,
                             .context = &of_.context,
                             .reference = of_.reference ? of_.reference->logprobs(micro_batch) : Tensor()};
    return comparison_of(of_.objective, pass, batches_[static_cast<size_t>(micro_batch)], out);
  }

  Transformer& model_;
  std::span<const Batch> batches_;
  const Of of_;
};

}  // namespace

Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch, bool padded) {
  Tape tape(stream, Tape::Mode::off);
  return evaluation_of(tape, model, batch,
                       model.forward(tape, input_of(stream, batch, padded, Dropping::never)).logits);
}

Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch, bool padded, const Objective& objective,
                    const std::vector<double>& reference) {
  const std::vector<Batch> batches = {batch};
  StepInputs inputs(stream, batches, 0, objective.counts_sequences());
  inputs.upload(stream, batches);
  Tensor logprobs;
  if (!reference.empty())
    logprobs = dispatch_floating(accumulator(model.config().compute_dtype()), [&]<class A>() {
      return upload(stream, std::vector<A>(reference.begin(), reference.end()), {std::ssize(reference)});
    });
  Tape tape(stream, Tape::Mode::off);
  ModelOutput out = model.forward(tape, input_of(stream, batch, padded, Dropping::never));
  const ObjectivePass pass{
      .tape = tape, .model = model, .inputs = inputs, .micro_batch = 0, .scaled_losses = false, .reference = logprobs};
  return comparison_of(objective, pass, batch, out);
}

std::vector<double> target_logprobs(Stream& stream, Transformer& model, const Batch& batch, bool padded) {
  Tape tape(stream, Tape::Mode::off);
  Var logits = model.forward(tape, input_of(stream, batch, padded, Dropping::never)).logits;
  const auto [ids, weights] = upload_targets(stream, batch, accumulator(model.config().compute_dtype()));
  const Tensor losses = model.token_losses(tape, std::move(logits), ids, weights).losses.value();
  std::vector<double> logprobs(static_cast<size_t>(losses.elements()));
  if (stream.is_meta()) return logprobs;
  dispatch_floating(losses.dtype(), [&]<class A>() {
    std::vector<A> read(logprobs.size());
    stream.read(read.data(), losses);
    std::ranges::transform(read, logprobs.begin(), [](A loss) { return -static_cast<double>(loss); });
  });
  return logprobs;
}

StageEvaluation evaluate(Stream& stream, Transformer& model, PipelineChannel& channel, std::span<const Batch> batches,
                         const ReportSizes& sizes, int stage) {
  EvaluationPasses passes(stream, model, batches, sizes, stage);
  channel.run(stream, passes);
  return passes.found();
}

Evaluator::Evaluator(RankModel& rank, const Objective& objective, Reference* reference)
    : stream_(rank.stream),
      groups_(rank.groups),
      config_(rank.config),
      stages_(rank.stages),
      model_(rank.model),
      units_(*rank.units),
      objective_(&objective),
      reference_(reference) {}

int64_t Evaluator::together() const {
  return stages_.stages() == 1 ? 1 : config_.micro_batches() / groups_.layout().data_ranks();
}

StageEvaluation Evaluator::evaluate_run(std::span<const Batch> run, const ReportSizes& sizes, Repetition* repetition) {
  Group& pipeline = groups_.of(Axis::pipeline);
  const Pipeline passes{stages_.stages(), stages_.chunks(), together(), Pipeline::Passes::forward};
  PipelineChannel channel(pipeline, passes, residual_shape(config_, run.front()), config_.model.compute_dtype(),
                          stages_.stages() == 1 ? nullptr : repetition);
  if (!objective_->evaluated().empty()) return compare_run(run, channel, sizes, repetition);
  return witan::evaluate(stream_, model_, channel, run, sizes, pipeline.rank());
}

StageEvaluation Evaluator::compare_run(std::span<const Batch> run, PipelineChannel& channel, const ReportSizes& sizes,
                                       Repetition* repetition) {
  const std::vector<Batch> batches(run.begin(), run.end());
  StepInputs inputs(stream_, batches, 0, objective_->counts_sequences());
  inputs.upload(stream_, batches);
  std::optional<ReferencePasses> reference;
  if (reference_) {
    reference.emplace(*reference_, batches, Dropping::measured, stages_.stages() == 1 ? nullptr : repetition);
    reference->run(inputs);
    units_.begin_passes();
  }
  PreferencePasses passes(stream_, model_, run, sizes, groups_.of(Axis::pipeline).rank(),
                          {*objective_, inputs, reference ? &*reference : nullptr, groups_.of(Axis::context)});
  channel.run(stream_, passes);
  return passes.found();
}

// Evaluates runs of together() micro-batches. Each begins with as much free memory as the one before it, so that any
// number of runs takes the memory of one. A short last run is filled up with batches that are not counted.
Evaluation Evaluator::evaluate(const std::vector<Batch>& whole, Repetition* repetition) {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::evaluation);
  const Group& context = groups_.of(Axis::context);
  const std::vector<Batch> parts = context.size() > 1 ? context_part(whole, context) : std::vector<Batch>();
  const std::span<const Batch> batches = context.size() > 1 ? parts : whole;
  const std::string before = stream_.set_part("evaluation");
  const auto most = static_cast<size_t>(together());
  ModelConfig evaluated = config_.model;
  evaluated.mtp_num_layers = 0;  // only training uses their predictions
  const ReportSizes sizes(evaluated, stages_, static_cast<int64_t>(most));
  RouterSums routers(sizes.statistics(), sizes.blocks());
  units_.begin_passes();
  const std::vector<std::string> names = objective_->evaluated();
  const size_t each = 2 + names.size();
  std::vector<double> own;  // of each batch: nats, targets, figures
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
    for (size_t i = 0; i < real; ++i) {
      own.insert(own.end(), {found.losses[i].nats, found.losses[i].targets});
      for (size_t figure = 0; figure < names.size(); ++figure)
        own.push_back(found.losses[i].figures.empty() ? 0 : found.losses[i].figures[figure].second);
    }
    for (size_t i = 0; i < std::min(real, found.routers.size()); ++i) add_routers(routers, sizes, found.routers[i]);
    units_.end_pass();
  }
  units_.give_back();
  stream_.set_part(before);
  // Gathered batch by batch, so that this too takes the memory of one. Summed rank by rank.
  std::vector<std::vector<double>> all;
  for (auto batch = own.begin(); batch != own.end(); batch += static_cast<ptrdiff_t>(each))
    all.push_back(gather({batch, batch + static_cast<ptrdiff_t>(each)}));
  Evaluation sum;
  for (const std::string& name : names) sum.figures.emplace_back(name, 0);
  for (size_t at = 0; !all.empty() && at < all.front().size(); at += each)
    for (const std::vector<double>& batch : all) {
      sum.nats += batch[at];
      sum.targets += batch[at + 1];
      for (size_t figure = 0; figure < names.size(); ++figure) sum.figures[figure].second += batch[at + 2 + figure];
    }
  for (auto& [name, value] : sum.figures) value /= std::max(sum.targets, 1.0);
  if (sizes.blocks() > 0) sum.router = gather(routers);
  return sum;
}

// The values of all ranks that report losses, in the order of ranks.
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

// `found`: a micro-batch's statistics on this stage. All context-parallel ranks have the same, and the first one's
// count.
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
  if (stream_.is_meta()) return {};  // once per evaluation: a plan counts what each micro-batch takes
  groups_.over(groups_.layout().loss_reporting_axes()).all_reduce(stream_, all);
  stream_.read(sums.values().data(), all);
  return sums.statistics();
}

}  // namespace witan

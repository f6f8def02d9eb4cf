#include "witan/train/step/step_report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/pointwise/activation_moments.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/moe/routers/router.h"
#include "witan/report/events/events.h"

namespace witan {
namespace {

constexpr int64_t kTotals = 2;

void check_names(const ReportedLosses& losses) {
  std::set<std::string> names;
  for (size_t i = 0; i < losses.size(); ++i)
    if (is_step_figure(losses[i].name) || !names.insert(losses[i].name).second)
      throw Error(ExitCode::internal,
                  cat("the loss ", losses[i].name, " has the name of another figure of a step: choose another name"));
}

}  // namespace

ReportSizes::Activations ReportSizes::activations_of(const RunConfig& config) {
  if (config.log.log_activations == 0) return Activations::none;
  return config.parallel.sequence_parallel ? Activations::shared : Activations::same;
}

void add_losses(std::vector<LossSpec>& losses, Transformer& model) {
  model.visit([&](const Module& module) {
    for (const LossSpec& loss : module.losses()) {
      const auto same = [&](const LossSpec& other) { return other.name == loss.name && other.over == loss.over; };
      if (std::ranges::none_of(losses, same)) losses.push_back(loss);
    }
  });
}

ReportSizes::ReportSizes(const ModelConfig& model, const Stages& stages, int64_t micro_batches, ReportedLosses losses,
                         Activations activations)
    : micro_batches_(micro_batches),
      chunks_(stages.chunks()),
      losses_(std::move(losses)),
      statistics_(router_statistics(model.moe), model.moe.num_experts),
      held_(static_cast<size_t>(stages.stages())),
      activations_(activations),
      layers_(model.num_layers + model.mtp_num_layers),
      held_layers_(held_.size()) {
  check_names(losses_);
  std::vector<int64_t> numbers;  // by layer: of the block, among those with experts
  for (const LayerSpec& layer : layers_with_mtp(model)) numbers.push_back(layer.moe ? blocks_++ : -1);
  for (int stage = 0; stage < stages.stages(); ++stage) {
    auto& chunks = held_[static_cast<size_t>(stage)];
    auto& layers = held_layers_[static_cast<size_t>(stage)];
    for (int chunk = 0; chunk < stages.chunks(); ++chunk) {
      const auto [first, last] = stages.layers(stage, chunk);
      auto& blocks = chunks.emplace_back(numbers.begin() + first, numbers.begin() + last);
      if (stages.has_head(stage, chunk)) blocks.insert(blocks.end(), numbers.begin() + model.num_layers, numbers.end());
      std::erase(blocks, -1);
      for (int64_t layer = first; layer < last; ++layer) layers.push_back(layer);
      for (int64_t layer = model.num_layers; layer < layers_ && stages.has_head(stage, chunk); ++layer)
        layers.push_back(layer);
    }
    most_layers_ = std::max(most_layers_, static_cast<int64_t>(layers.size()));
    most_held_ = std::max(most_held_, static_cast<int64_t>(held(stage).size()));
  }
}

int64_t ReportSizes::values_of_layer() {
  return kActivations * kernels::kActivationMoments;
}

std::vector<int64_t> ReportSizes::held(int stage) const {
  std::vector<int64_t> blocks;
  for (const auto& chunk : held_[static_cast<size_t>(stage)]) blocks.insert(blocks.end(), chunk.begin(), chunk.end());
  return blocks;
}

StepReport::StepReport(Stream& stream, const Layout& layout, int rank, ReportSizes sizes)
    : layout_(layout),
      stage_(layout.mesh().coordinate(rank, Axis::pipeline)),
      sizes_(std::move(sizes)),
      all_(stream.empty({layout.world_size() * values()}, DType::f64, MemoryTag::communication)),
      own_(all_.narrow(0, rank * values(), values())),
      end_(stream.zeros({1}, DType::f64, MemoryTag::communication)) {
  stream.zero(own_);  // a stage that holds fewer blocks than another leaves some of it unwritten
}

int64_t StepReport::values() const {
  return sizes_.micro_batches() * sizes_.micro_batch_values() + kTotals + kernels::kStepValues + 1;
}

void StepReport::add(Stream& stream, int64_t micro_batch, int chunk, const ModelOutput& out,
                     const std::vector<LossRecord>& losses) const {
  for (const LossRecord& loss : losses) check_declared(loss);
  add_module_losses(stream, micro_batch, chunk, losses);
  std::vector<Tensor> sources;
  for (const RouterRecord& router : out.routers)
    for (const Tensor& value : sizes_.statistics().pack(router)) sources.push_back(value);
  for (const LossSpec& loss : sizes_.losses().objective)
    if (const auto found = std::ranges::find(losses, loss.name, &LossRecord::name); found != losses.end())
      sources.push_back(found->value.value());
  if (sources.empty()) return;
  int64_t begin = micro_batch * sizes_.micro_batch_values(), count = 0;
  for (int before = 0; before < chunk; ++before)
    begin += static_cast<int64_t>(sizes_.held(stage_, before).size()) * sizes_.statistics().values();
  for (const Tensor& source : sources) count += source.elements();
  kernels::collect(stream, own_.narrow(0, begin, count), sources);
}

void StepReport::check_declared(const LossRecord& loss) const {
  const auto has = [&](const auto& declared, auto name) {
    return std::ranges::find(declared, loss.name, name) != declared.end();
  };
  if (has(sizes_.losses().objective, &LossSpec::name) || has(sizes_.losses().modules, &LossSpec::name) ||
      has(sizes_.statistics().declared(), &RouterStatistic::name))
    return;
  throw Error(ExitCode::internal, cat("the loss ", loss.name,
                                      " was recorded, but is not declared: name it in "
                                      "Module::losses(), or in Objective::losses()"));
}

// Each chunk has places of its own, since another one's pass may come later.
void StepReport::add_module_losses(Stream& stream, int64_t micro_batch, int chunk,
                                   const std::vector<LossRecord>& losses) const {
  const std::vector<LossSpec>& declared = sizes_.losses().modules;
  const int64_t begin = micro_batch * sizes_.micro_batch_values() + sizes_.module_losses_begin() +
                        chunk * static_cast<int64_t>(declared.size());
  for (size_t i = 0; i < declared.size(); ++i) {
    Tensor sum;
    for (const LossRecord& loss : losses) {
      if (loss.name != declared[i].name) continue;
      if (!sum.defined()) {
        sum = loss.value.value();
        continue;
      }
      const Tensor more = stream.empty_like(sum);
      kernels::add(stream, more, sum, loss.value.value());
      sum = more;
    }
    if (sum.defined()) kernels::collect(stream, own_.narrow(0, begin + static_cast<int64_t>(i), 1), {sum});
  }
}

void StepReport::finish(Stream& stream, Group& world, const Tensor& total, const Tensor& step) const {
  const int64_t begin = sizes_.micro_batches() * sizes_.micro_batch_values();
  kernels::collect(stream, own_.narrow(0, begin, values() - begin), {total, step, end_});
  world.all_gather(stream, all_, own_);
}

void StepReport::write_end(Stream& stream, RunEnd asked) const {
  const auto number = static_cast<double>(asked);
  stream.write(end_, &number);
}

Tensor StepReport::moments(int64_t micro_batch, int64_t layer, Activation of) const {
  const std::vector<int64_t>& held = sizes_.held_layers(stage_);
  const auto at = std::ranges::find(held, layer) - held.begin();
  const int64_t begin = micro_batch * sizes_.micro_batch_values() + sizes_.activations_begin() +
                        at * ReportSizes::values_of_layer() + static_cast<int64_t>(of) * kernels::kActivationMoments;
  return own_.narrow(0, begin, kernels::kActivationMoments);
}

std::vector<Tensor> StepReport::own_losses() const {
  std::vector<Tensor> losses;
  if (stage_ + 1 < sizes_.stages()) return losses;
  const int64_t before = static_cast<int64_t>(sizes_.held(stage_).size()) * sizes_.statistics().values();
  for (int64_t i = 0; i < sizes_.micro_batches(); ++i)
    losses.push_back(own_.narrow(0, i * sizes_.micro_batch_values() + before, 1));
  return losses;
}

// Losses over tokens are of the rank's tokens; those over micro-batches, and the blocks' values, are of all of them.
void StepReport::read_micro_batch(const double* values, int rank, size_t which, Result& result, Losses& losses) const {
  const int stage = layout_.mesh().coordinate(rank, Axis::pipeline);
  const bool first = layout_.mesh().coordinate(rank, Axis::context) == 0;  // of the ranks that share a micro-batch
  const auto add = [&](size_t loss, const LossSpec& declared, double value) {
    if (first || declared.over == LossSpec::Over::tokens) losses[loss][which] += value;
  };
  const auto& [objective, modules] = sizes_.losses();
  const double* next = values + sizes_.module_losses_begin();
  for (int64_t chunk = 0; chunk < sizes_.chunks(); ++chunk)
    for (size_t i = 0; i < modules.size(); ++i) add(objective.size() + i, modules[i], *next++);
  for (const int64_t number : sizes_.held(stage)) {
    const double* end = values + sizes_.statistics().values();
    result.statistics[which][static_cast<size_t>(number)].assign(values, end);
    values = end;
  }
  if (stage + 1 < sizes_.stages()) return;
  for (size_t i = 0; i < objective.size(); ++i) add(i, objective[i], *values++);
}

// Summed over the ranks of a micro-batch, then over micro-batches, so that layouts that do not divide a micro-batch
// have the same bits.
std::vector<StepReport::LayerMoments> StepReport::activations(const Result& result) const {
  if (result.values.empty()) return {};
  const Mesh& mesh = layout_.mesh();
  std::vector<std::vector<int>> ranks(
      static_cast<size_t>(layout_.data_ranks()));  // that measure, by data-parallel rank
  for (int rank = 0; rank < layout_.world_size(); ++rank)
    if (sizes_.activations() == ReportSizes::Activations::shared || mesh.coordinate(rank, Axis::tensor) == 0)
      ranks[static_cast<size_t>(layout_.data_rank(rank))].push_back(rank);
  std::vector<LayerMoments> all(static_cast<size_t>(sizes_.layers()));
  for (const std::vector<int>& together : ranks)
    for (int64_t i = 0; i < sizes_.micro_batches(); ++i) {
      std::vector<LayerMoments> of_micro_batch(all.size());
      for (const int rank : together) {
        const double* next =
            result.values.data() + rank * values() + i * sizes_.micro_batch_values() + sizes_.activations_begin();
        for (const int64_t layer : sizes_.held_layers(mesh.coordinate(rank, Axis::pipeline)))
          for (ActivationMoments& moments : of_micro_batch[static_cast<size_t>(layer)]) {
            moments.add(ActivationMoments::read(next));
            next += kernels::kActivationMoments;
          }
      }
      for (size_t layer = 0; layer < all.size(); ++layer)
        for (size_t of = 0; of < kActivations; ++of) all[layer][of].add(of_micro_batch[layer][of]);
    }
  return all;
}

StepReport::Result StepReport::read(Stream& stream) const {
  Result result;
  result.losses.resize(sizes_.losses().size());
  if (stream.is_meta()) {
    result.step.resize(kernels::kStepValues);
    return result;
  }
  result.values.resize(static_cast<size_t>(all_.elements()));
  stream.read(result.values.data(), all_);
  const int64_t count = sizes_.micro_batches();
  const auto micro_batches = static_cast<size_t>(layout_.data_ranks() * count);
  Losses losses(result.losses.size(), std::vector<double>(micro_batches));
  result.statistics.assign(micro_batches, std::vector<std::vector<double>>(static_cast<size_t>(sizes_.blocks())));
  const auto of_rank = [&](int rank) { return result.values.data() + rank * values(); };
  for (const int rank : layout_.loss_reporting_ranks())
    for (int64_t i = 0; i < count; ++i) {
      const auto which = static_cast<size_t>(layout_.data_rank(rank) * count + i);
      read_micro_batch(of_rank(rank) + i * sizes_.micro_batch_values(), rank, which, result, losses);
    }
  // In the order of micro-batches, whichever rank ran them: the same bits in every layout.
  for (size_t i = 0; i < losses.size(); ++i)
    for (const double loss : losses[i]) result.losses[i] += loss;
  for (size_t i = 0; i < losses.size(); ++i)
    if (sizes_.losses()[i].over == LossSpec::Over::micro_batches)
      result.losses[i] /= static_cast<double>(micro_batches);
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    const double* next = of_rank(rank) + count * sizes_.micro_batch_values();
    result.square_sum = *next++;
    result.zeros = *next++;
    result.step.assign(next, next + kernels::kStepValues);
    result.end = std::max(result.end, static_cast<RunEnd>(next[kernels::kStepValues]));
  }
  return result;
}

}  // namespace witan

#include "witan/train/step/step_report.h"

#include <algorithm>
#include <utility>

#include "witan/kernels/common/step_report.h"
#include "witan/kernels/pointwise/activation_moments.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

constexpr int64_t kTotals = 2;

}  // namespace

ReportSizes::Activations ReportSizes::activations_of(const RunConfig& config) {
  if (config.log.log_activations == 0) return Activations::none;
  return config.parallel.sequence_parallel ? Activations::shared : Activations::same;
}

ReportSizes::ReportSizes(const ModelConfig& model, const Stages& stages, int64_t micro_batches, Activations activations)
    : micro_batches_(micro_batches),
      mtp_modules_(model.mtp_num_layers),
      statistics_(router_statistics(model.moe), model.moe.num_experts),
      held_(static_cast<size_t>(stages.stages())),
      activations_(activations),
      layers_(model.num_layers + model.mtp_num_layers),
      held_layers_(held_.size()) {
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
                     const std::vector<Tensor>& losses) const {
  std::vector<Tensor> sources;
  for (const RouterRecord& router : out.routers)
    for (const Tensor& value : sizes_.statistics().pack(router)) sources.push_back(value);
  sources.insert(sources.end(), losses.begin(), losses.end());
  if (sources.empty()) return;
  int64_t begin = micro_batch * sizes_.micro_batch_values(), count = 0;
  for (int before = 0; before < chunk; ++before)
    begin += static_cast<int64_t>(sizes_.held(stage_, before).size()) * sizes_.statistics().values();
  for (const Tensor& source : sources) count += source.elements();
  kernels::collect(stream, own_.narrow(0, begin, count), sources);
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

// What a rank found. Losses are of the rank's tokens; the blocks' values are of all of them.
void StepReport::read_micro_batch(const double* values, int rank, size_t which, Result& result) const {
  const int stage = layout_.mesh().coordinate(rank, Axis::pipeline);
  for (const int64_t number : sizes_.held(stage)) {
    const double* end = values + sizes_.statistics().values();
    result.statistics[which][static_cast<size_t>(number)].assign(values, end);
    values = end;
  }
  if (stage + 1 < sizes_.stages()) return;
  result.losses[which] += *values++;
  for (double& loss : result.mtp_losses[which]) loss += *values++;
}

// Summed over a micro-batch's ranks, then micro-batch by micro-batch: where no axis divides one, the same sums in every
// layout.
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
  if (stream.is_meta()) {
    result.step.resize(kernels::kStepValues);
    return result;
  }
  result.values.resize(static_cast<size_t>(all_.elements()));
  stream.read(result.values.data(), all_);
  const int64_t count = sizes_.micro_batches();
  const auto micro_batches = static_cast<size_t>(layout_.data_ranks() * count);
  result.losses.resize(micro_batches);
  result.mtp_losses.assign(micro_batches, std::vector<double>(static_cast<size_t>(sizes_.mtp_modules())));
  result.statistics.assign(micro_batches, std::vector<std::vector<double>>(static_cast<size_t>(sizes_.blocks())));
  const auto of_rank = [&](int rank) { return result.values.data() + rank * values(); };
  for (const int rank : layout_.loss_reporting_ranks())
    for (int64_t i = 0; i < count; ++i) {
      const auto which = static_cast<size_t>(layout_.data_rank(rank) * count + i);
      read_micro_batch(of_rank(rank) + i * sizes_.micro_batch_values(), rank, which, result);
    }
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

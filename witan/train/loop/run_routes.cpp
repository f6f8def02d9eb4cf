#include "witan/train/loop/run_routes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/context.h"

namespace witan {
namespace {

std::vector<PositionRange> own_ranges(int64_t S, const Group& context) {
  const kernels::PositionRuns runs = context_positions(S, context.size(), context.rank());
  const int64_t length = S / context.size(), early = std::min(runs.split, length);
  std::vector<PositionRange> ranges = {{runs.first, early}, {runs.second, length - early}};
  std::erase_if(ranges, [](const PositionRange& range) { return range.count == 0; });
  return ranges;
}

std::vector<int64_t> own_layers(const RunConfig& config, int stage) {
  const Stages stages(config.parallel.stage_split(config.model.num_layers));
  std::vector<int64_t> layers = routed_layers(config.model);
  std::erase_if(layers, [&](int64_t layer) { return stages.stage_of(layer) != stage; });
  return layers;
}

RouteFile::Weights weights_of(const ModelConfig& config) {
  return config.compute_dtype() == DType::bf16 ? RouteFile::Weights::bf16 : RouteFile::Weights::f32;
}

std::vector<int32_t> all_tokens(const std::vector<Batch>& batches) {
  std::vector<int32_t> tokens;
  for (const Batch& batch : batches) std::ranges::copy(batch.tokens, std::back_inserter(tokens));
  return tokens;
}

// The tokens of sequences of length S at the ranges of positions.
std::vector<int32_t> at_positions(const std::vector<int32_t>& tokens, int64_t S,
                                  const std::vector<PositionRange>& ranges) {
  std::vector<int32_t> some;
  for (auto row = tokens.begin(); row != tokens.end(); row += S)
    for (const PositionRange& range : ranges)
      some.insert(some.end(), row + range.first, row + range.first + range.count);
  return some;
}

}  // namespace

std::vector<int64_t> routed_layers(const ModelConfig& config) {
  std::vector<int64_t> numbers;
  const std::vector<LayerSpec> layers = config.layers();
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i].moe) numbers.push_back(static_cast<int64_t>(i));
  return numbers;
}

std::optional<RecordedRoutes> open_replayed_routes(const RunConfig& config) {
  if (config.train.replay_routes.empty()) return std::nullopt;
  const RoutedModel model{config.model.moe.num_experts, config.model.moe.moe_router_topk, routed_layers(config.model)};
  return RecordedRoutes(config.train.replay_routes, model, config.data.seq_length);
}

RunRoutes::RunRoutes(const RunConfig& config, const Groups& groups)
    : record_(config.train.record_routes),
      recorded_(open_replayed_routes(config)),
      experts_(config.model.moe.num_experts),
      topk_(config.model.moe.moe_router_topk),
      sequence_length_(config.data.seq_length),
      all_sequences_(config.train.global_batch_size),
      first_sequence_(all_sequences_ / groups.layout().data_ranks() * groups.layout().data_rank(groups.rank())),
      sequences_(all_sequences_ / groups.layout().data_ranks()),
      positions_(own_ranges(sequence_length_, groups.of(Axis::context))),
      layers_(own_layers(config, groups.of(Axis::pipeline).rank())),
      stored_as_(weights_of(config.model)),
      writes_(groups.of(Axis::tensor).rank() == 0),
      rank_(groups.rank()),
      ranks_(groups.layout().world_size()) {}

std::vector<int32_t> RunRoutes::read(int64_t step, const std::vector<Batch>& batches) const {
  const std::vector<int32_t> tokens = all_tokens(batches);
  return recorded_->read({step, all_sequences_, first_sequence_, sequences_, positions_, layers_, tokens});
}

void RunRoutes::write(int64_t step, const std::vector<Batch>& batches, const StepRoutes::Found& found) const {
  if (!writes_) return;
  RouteFile file{RouteFile::Kind::training, stored_as_,      step,       experts_,   topk_, all_sequences_,
                 sequence_length_,          first_sequence_, sequences_, positions_, {},    {}};
  file.tokens = at_positions(all_tokens(batches), sequence_length_, positions_);
  const int64_t each = sequences_ * file.positions_each() * topk_;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto first = static_cast<std::ptrdiff_t>(i) * each;
    file.layers.push_back({layers_[i],
                           {found.ids.begin() + first, found.ids.begin() + first + each},
                           {found.weights.begin() + first, found.weights.begin() + first + each}});
  }
  write_routes(record_, file, rank_, ranks_);
}

RouteLog::RouteLog(Transformer& model) : config_(model.config()) {
  require<ConfigError>(config_.moe.num_experts > 0, "--record-routes: a dense model routes nothing (num_experts = 0)");
  for (const int64_t layer : routed_layers(config_)) layers_.push_back({layer, {}, {}});
  model.attach({.routes = this});
}

void RouteLog::record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) {
  RouteFile::Layer& layer = layers_[static_cast<size_t>(router)];
  const auto count = static_cast<size_t>(ids.elements());
  std::vector<int32_t> chosen(count);
  stream.read(chosen.data(), ids);
  layer.ids.insert(layer.ids.end(), chosen.begin(), chosen.end());
  dispatch_floating(weights.dtype(), [&]<class A>() {
    std::vector<A> values(count);
    stream.read(values.data(), weights);
    for (const A value : values) layer.weights.push_back(static_cast<float>(value));
  });
}

int64_t RouteLog::tokens() const {
  return static_cast<int64_t>(layers_.front().ids.size()) / config_.moe.moe_router_topk;
}

void RouteLog::write(const fs::path& folder, RouteFile::Kind kind, int64_t step, int64_t sequences,
                     std::vector<int32_t> tokens) {
  RouteFile file;
  file.kind = kind;
  file.stored_as = weights_of(config_);
  file.step = step;
  file.experts = config_.moe.num_experts;
  file.topk = config_.moe.moe_router_topk;
  file.all_sequences = file.sequences = sequences;
  file.sequence_length = static_cast<int64_t>(tokens.size()) / sequences;
  file.positions = {{0, file.sequence_length}};
  file.tokens = std::move(tokens);
  for (RouteFile::Layer& layer : layers_)
    file.layers.push_back({layer.layer, std::exchange(layer.ids, {}), std::exchange(layer.weights, {})});
  write_routes(folder, file, 0, 1);
}

}  // namespace witan

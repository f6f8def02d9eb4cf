#include "witan/parallel/stages.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

// Number of layers, including what counts as one.
int64_t counted_layers(const StageSplit& split) {
  return split.num_layers + (split.account_for_embedding_in_pipeline_split ? 1 : 0) +
         (split.account_for_loss_in_pipeline_split ? 1 : 0);
}

template <class... Pieces>
void require_key(bool possible, const char* key, int64_t value, const Pieces&... why) {
  require<ConfigError>(possible, key, " = ", value, ": ", why...);
}

void check_numbers(const StageSplit& split) {
  const auto at_least = [](int64_t least, const char* key, int64_t value) {
    require_key(value >= least, key, value, "the nearest that works is ", least);
  };
  at_least(1, "num_layers", split.num_layers);
  at_least(1, "pipeline_model_parallel_size", split.pipeline_model_parallel_size);
  at_least(0, "num_layers_per_virtual_pipeline_stage", split.num_layers_per_virtual_pipeline_stage);
  at_least(0, "num_virtual_stages_per_pipeline_rank", split.num_virtual_stages_per_pipeline_rank);
  at_least(0, "decoder_first_pipeline_num_layers", split.decoder_first_pipeline_num_layers);
  at_least(0, "decoder_last_pipeline_num_layers", split.decoder_last_pipeline_num_layers);
  require_key(split.pipeline_model_parallel_size <= counted_layers(split), "pipeline_model_parallel_size",
              split.pipeline_model_parallel_size, "more pipeline stages than the ", counted_layers(split),
              " layers; the nearest that works is ", counted_layers(split));
}

bool is_uneven(const StageSplit& split) {
  return split.decoder_first_pipeline_num_layers > 0 || split.decoder_last_pipeline_num_layers > 0;
}

// The divisor of `whole` nearest to `wanted`; the smaller one of two.
int64_t nearest_divisor(int64_t whole, int64_t wanted) {
  int64_t nearest = 1;
  for (int64_t number = 1; number <= whole; ++number)
    if (whole % number == 0 && std::abs(number - wanted) < std::abs(nearest - wanted)) nearest = number;
  return nearest;
}

int64_t chunks_by_size(const StageSplit& split) {
  constexpr const char* kKey = "num_layers_per_virtual_pipeline_stage";
  constexpr const char* kOther = "num_virtual_stages_per_pipeline_rank";
  const int64_t size = split.num_layers_per_virtual_pipeline_stage, stages = split.pipeline_model_parallel_size;
  const int64_t layers = counted_layers(split);
  require_key(split.num_virtual_stages_per_pipeline_rank == 0, kKey, size,
              "it already sets the number of virtual stages; drop ", kOther, " = ",
              split.num_virtual_stages_per_pipeline_rank);
  require_key(!is_uneven(split), kKey, size,
              "pipeline stages of different sizes cannot have virtual stages of one size; set ", kOther, " instead");
  require_key(layers % stages == 0, kKey, size, layers, " layers are not divisible by ", stages,
              " pipeline stages; set ", kOther, " instead");
  require_key(layers / stages % size == 0, kKey, size, "it does not divide the ", layers / stages,
              " layers of a pipeline stage; the nearest that works is ", nearest_divisor(layers / stages, size));
  return layers / stages / size;
}

int64_t chunks_of(const StageSplit& split) {
  const bool by_size = split.num_layers_per_virtual_pipeline_stage > 0;
  const int64_t chunks =
      by_size ? chunks_by_size(split) : std::max<int64_t>(split.num_virtual_stages_per_pipeline_rank, 1);
  const int64_t stages = split.pipeline_model_parallel_size, layers = counted_layers(split);
  require_key(chunks == 1 || stages > 1,
              by_size ? "num_layers_per_virtual_pipeline_stage" : "num_virtual_stages_per_pipeline_rank",
              by_size ? split.num_layers_per_virtual_pipeline_stage : chunks,
              "interleaving needs several pipeline stages, and there is one; the nearest that works is ",
              by_size ? layers : 1);
  require_key(stages * chunks <= layers, "num_virtual_stages_per_pipeline_rank", chunks, stages, " pipeline stages of ",
              chunks, " virtual stages need ", stages * chunks, " layers, and there are ", layers,
              "; the nearest that works is ", layers / stages);
  return chunks;
}

void check_uneven(const StageSplit& split, int64_t chunks) {
  constexpr const char *kFirst = "decoder_first_pipeline_num_layers", *kLast = "decoder_last_pipeline_num_layers";
  const int64_t first = split.decoder_first_pipeline_num_layers, last = split.decoder_last_pipeline_num_layers;
  const int64_t layers = split.num_layers, stages = split.pipeline_model_parallel_size;
  for (const auto& [key, value] : {std::pair(kFirst, first), std::pair(kLast, last)}) {
    if (value == 0) continue;
    require_key(!split.account_for_embedding_in_pipeline_split && !split.account_for_loss_in_pipeline_split, key, value,
                "it sets the layers of a pipeline stage itself; drop "
                "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split");
    require_key(stages > 1, key, value, "the only stage has all ", layers, " layers; drop it");
    const int64_t most = layers - (stages - 1) * chunks;
    require_key(value >= chunks && value <= most, key, value, "every virtual stage needs a layer, and there are ",
                layers, " for ", stages, " pipeline stages of ", chunks, "; the nearest that works is ",
                std::clamp(value, chunks, most));
  }
  if (first == 0 || last == 0) return;
  const int64_t between = stages - 2, left = layers - first - last;
  require_key(between == 0 ? left == 0 : left >= between * chunks, kLast, last, "with ", kFirst, " = ", first, ", ",
              between == 0 ? cat("two pipeline stages have ", first + last, " layers and the model ", layers)
                           : cat("the ", layers, " layers leave another virtual stage without a layer"),
              "; the nearest that works is ", layers - first - between * chunks);
}

// The number of layers in each chunk.
std::vector<int64_t> dealt(int64_t layers, int64_t chunks, bool last_has_head) {
  if (chunks == 0) return {};
  std::vector<int64_t> sizes(static_cast<size_t>(chunks), layers / chunks);
  const auto end = sizes.end() - (last_has_head ? 1 : 0);
  std::for_each(end - layers % chunks, end, [](int64_t& size) { ++size; });
  return sizes;
}

}  // namespace

void StageSplit::validate() const {
  Stages{*this};
}

Stages::Stages(const StageSplit& split) {
  check_numbers(split);
  const int64_t chunks = chunks_of(split);
  check_uneven(split, chunks);
  stages_ = static_cast<int>(split.pipeline_model_parallel_size);
  chunks_ = static_cast<int>(chunks);

  const int64_t of_first = split.decoder_first_pipeline_num_layers, of_last = split.decoder_last_pipeline_num_layers;
  const int64_t others = stages_ - (of_first > 0 ? 1 : 0) - (of_last > 0 ? 1 : 0);
  const auto first = dealt(of_first, chunks, false), last = dealt(of_last, chunks, true);
  const auto other = dealt(counted_layers(split) - of_first - of_last, chunks * others, of_last == 0);

  auto next = other.begin();
  begins_.push_back(0);
  for (size_t chunk = 0; chunk < static_cast<size_t>(chunks); ++chunk)
    for (int stage = 0; stage < stages_; ++stage) {
      int64_t size = 0;
      if (stage == 0 && of_first > 0) {
        size = first[chunk];
      } else if (stage == stages_ - 1 && of_last > 0) {
        size = last[chunk];
      } else {
        size = *next++;
      }
      begins_.push_back(begins_.back() + size);
    }
  // Subtract what only counted as a layer.
  if (split.account_for_embedding_in_pipeline_split)
    std::for_each(begins_.begin() + 1, begins_.end(), [](int64_t& begin) { --begin; });
  if (split.account_for_loss_in_pipeline_split) --begins_.back();
  assert(begins_.back() == split.num_layers);
}

LayerRange Stages::layers(int stage, int chunk) const {
  assert(stage >= 0 && stage < stages_ && chunk >= 0 && chunk < chunks_);
  const auto at = static_cast<size_t>(chunk) * static_cast<size_t>(stages_) + static_cast<size_t>(stage);
  return {begins_[at], begins_[at + 1]};
}

int Stages::stage_of(int64_t layer) const {
  assert(layer >= 0 && layer < begins_.back());
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), layer);
  return static_cast<int>((after - begins_.begin() - 1) % stages_);
}

StageLayers Stages::held_by(int stage) const {
  StageLayers held{{}, has_embedding(stage, 0), has_head(stage, chunks_ - 1)};
  for (int chunk = 0; chunk < chunks_; ++chunk) held.chunks.push_back(layers(stage, chunk));
  return held;
}

}  // namespace witan

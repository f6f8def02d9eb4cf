#include "witan/planner/search/elastic_layout.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "witan/base/error.h"

namespace witan {
namespace {

// All divisors in descending order, beginning with the size itself; 0 (automatic) gives 0 alone.
std::vector<int64_t> divisors_down(int64_t size) {
  if (size == 0) return {0};
  std::vector<int64_t> divisors;
  for (int64_t divisor = size; divisor >= 1; --divisor)
    if (size % divisor == 0) divisors.push_back(divisor);
  return divisors;
}

// Sizes of the axes that divide the work on one sample.
struct ModelAxes {
  int64_t tensor = 1, pipeline = 1, context = 1;

  int64_t ranks() const { return tensor * pipeline * context; }
};

// Larger products first, beginning with the run's own sizes. Of equal products those that keep tensor, then pipeline
// come first, because without these a rank holds more of the model.
std::vector<ModelAxes> model_axes(const ParallelConfig& parallel) {
  std::vector<ModelAxes> all;
  for (const int64_t tensor : divisors_down(parallel.tensor_model_parallel_size))
    for (const int64_t pipeline : divisors_down(parallel.pipeline_model_parallel_size))
      for (const int64_t context : divisors_down(parallel.context_parallel_size))
        all.push_back({tensor, pipeline, context});
  std::ranges::stable_sort(all, std::ranges::greater(), &ModelAxes::ranks);
  return all;
}

void set_axes(ParallelConfig& parallel, const ModelAxes& axes) {
  parallel.tensor_model_parallel_size = axes.tensor;
  parallel.sequence_parallel = parallel.sequence_parallel && axes.tensor > 1;
  parallel.context_parallel_size = axes.context;
  if (axes.pipeline == parallel.pipeline_model_parallel_size) return;
  parallel.pipeline_model_parallel_size =
      axes.pipeline;  // the old split into stages does not suit another number of them
  parallel.num_layers_per_virtual_pipeline_stage = parallel.num_virtual_stages_per_pipeline_rank = 0;
  parallel.decoder_first_pipeline_num_layers = parallel.decoder_last_pipeline_num_layers = 0;
}

class ElasticSearch {
 public:
  ElasticSearch(const RunConfig& given, const Facts& facts, const RankLimits& limits, const LayoutCheck& check)
      : given_(given), facts_(facts), limits_(limits), check_(check) {}

  ResolvedConfig run() {
    for (const ModelAxes& axes : model_axes(given_.parallel))
      for (int64_t ranks = limits_.most / axes.ranks() * axes.ranks(); ranks >= std::max<int64_t>(limits_.least, 1);
           ranks -= axes.ranks())
        if (auto found = divided_further(axes, ranks)) return *std::move(found);
    throw ConfigError(cat("no layout of ", limits_.least == limits_.most ? "" : cat(limits_.least, " to "),
                          limits_.most, limits_.most == 1 ? " rank" : " ranks",
                          " trains this run: ", why_.empty() ? "its axes have more ranks" : why_));
  }

 private:
  std::optional<ResolvedConfig> divided_further(const ModelAxes& axes, int64_t ranks) {
    const ParallelConfig& given = given_.parallel;
    for (const int64_t expert_tensor : divisors_down(given.expert_tensor_parallel_size))
      for (const int64_t expert : divisors_down(given.expert_model_parallel_size))
        for (const int64_t instances : divisors_down(given.num_distributed_optimizer_instances)) {
          RunConfig config = given_;
          set_axes(config.parallel, axes);
          config.parallel.ranks = ranks;
          config.parallel.expert_tensor_parallel_size = expert_tensor;
          config.parallel.expert_model_parallel_size = expert;
          config.parallel.num_distributed_optimizer_instances = instances;
          if (auto found = valid(config)) return found;
        }
    return std::nullopt;
  }

  std::optional<ResolvedConfig> valid(const RunConfig& config) try {
    Facts facts = facts_;
    const int64_t ranks = config.parallel.ranks;
    facts.launched = {.ranks = ranks, .ranks_per_process = 1, .local_ranks = ranks};
    ResolvedConfig resolved = resolve(config, facts);
    if (check_) check_(resolved);
    return resolved;
  } catch (const Error& error) {
    why_ = error.what();
    return std::nullopt;
  }

  const RunConfig& given_;
  const Facts& facts_;
  const RankLimits limits_;
  const LayoutCheck& check_;
  std::string why_;  // the error of the last layout tried
};

}  // namespace

ResolvedConfig elastic_layout(const RunConfig& given, const Facts& facts, const RankLimits& limits,
                              const LayoutCheck& check) {
  return ElasticSearch(given, facts, limits, check).run();
}

std::string layout_keys(RunConfig config) {
  constexpr std::array<std::string_view, 12> keys = {"ranks",
                                                     "tensor_model_parallel_size",
                                                     "sequence_parallel",
                                                     "context_parallel_size",
                                                     "pipeline_model_parallel_size",
                                                     "num_layers_per_virtual_pipeline_stage",
                                                     "num_virtual_stages_per_pipeline_rank",
                                                     "decoder_first_pipeline_num_layers",
                                                     "decoder_last_pipeline_num_layers",
                                                     "expert_model_parallel_size",
                                                     "expert_tensor_parallel_size",
                                                     "num_distributed_optimizer_instances"};
  std::string toml;
  for (const Field& field : config.fields())
    if (std::ranges::find(keys, field.name) != keys.end()) toml += cat(field.name, " = ", field.text(), "\n");
  return toml;
}

}  // namespace witan

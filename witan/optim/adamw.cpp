#include "witan/optim/adamw.h"

namespace witan {
namespace {

std::optional<DType> dtype_of(const std::string& moment) {
  return moment == "bfloat16" ? std::optional(DType::bf16) : std::nullopt;
}

}  // namespace

// Of float32 the gradient is read, and value and moments are read and written.
const OptimizerTraits AdamW::kTraits = {
    .name = "adam",
    .needs = ShardBy::elements,
    .state =
        [](const OptimizerSettings& settings) {
          return std::vector<OptimizerStateSpec>{{.prefix = "adam.m", .dtype = dtype_of(settings.exp_avg_dtype)},
                                                 {.prefix = "adam.v", .dtype = dtype_of(settings.exp_avg_sq_dtype)}};
        },
    .cost =
        [](const OptimizerSettings& settings, int64_t rows, int64_t columns) {
          double bytes = 12;
          for (const std::string& moment : {settings.exp_avg_dtype, settings.exp_avg_sq_dtype})
            bytes += dtype_of(moment) ? 4 : 8;
          return bytes * static_cast<double>(rows) * static_cast<double>(columns);
        },
    .make = [](const ParamGroup& group, size_t index, Stream& stream,
               std::vector<ParameterShard> parameter_shards) -> std::unique_ptr<Optimizer> {
      return std::make_unique<AdamW>(group, index, stream, std::move(parameter_shards));
    }};

AdamW::AdamW(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
    : ElementwiseOptimizer(group, index, stream, std::move(parameter_shards)),
      args_{group.settings.adam_beta1, group.settings.adam_beta2, group.settings.adam_eps} {}

void AdamW::update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table,
                         const Tensor& step, int64_t rate) {
  args_.rate = rate;
  kernels::adamw_all(stream, items, table, step, args_);
}

}  // namespace witan

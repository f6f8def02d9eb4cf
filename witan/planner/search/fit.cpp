#include "witan/planner/search/fit.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "witan/base/config/fields.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/planner/memory/reserve.h"
#include "witan/planner/plan.h"
#include "witan/tensor/cuda.h"

namespace witan {
namespace {

constexpr int64_t kShortestSequence = 128;  // below this length a language model learns little

// One way to distribute the work over ranks.
struct Division {
  int64_t ranks, expert, threads;
  Sharding sharding;
};

// The most ranks that the config could have: its own number if they are threads that share this machine's cores, the
// number of GPUs if each has one, and any number if the GPUs are others than this machine's.
int64_t most_ranks(const RunConfig& config) {
  const auto& own = config.parallel;
  if (!own.on_gpu() || own.ranks_per_process > 0) return own.ranks;
  return own.ranks > cuda::devices() ? config.micro_batches() * own.model_ranks() : cuda::devices();
}

// Adds divisions on `ranks` ranks with larger expert parallelism than the config's; with every one if the config has
// another number of ranks.
void divide_experts(const RunConfig& config, int64_t ranks, std::vector<Division>& all) {
  const auto& own = config.parallel;
  const int64_t threads = own.threads * own.ranks / ranks;
  for (int64_t expert = ranks; expert >= 1; --expert) {
    if (ranks % expert != 0 || config.model.moe.num_experts % expert != 0) continue;
    if (ranks == own.ranks && expert <= own.expert_model_parallel_size) break;
    all.push_back({ranks, expert, threads, own.sharding()});
    if (config.model.moe.num_experts == 0) break;
  }
}

// The config's own first, then more expert parallelism, then sharding over ranks that hold the same state, then fewer
// ranks, then more.
std::vector<Division> divisions(const RunConfig& config, bool ranks_are_given) {
  const auto& own = config.parallel;
  std::vector<Division> all = {{own.ranks, own.expert_model_parallel_size, own.threads, own.sharding()}};
  const int64_t shared = config.micro_batches() * own.model_ranks();  // what data-parallel ranks must divide evenly
  divide_experts(config, own.ranks, all);
  for (const Sharding more : {Sharding::optimizer, Sharding::parameters})
    for (size_t i = 0, divided = all.size(); more > own.sharding() && i < divided; ++i)
      if (all[i].sharding == own.sharding()) all.push_back({own.ranks, all[i].expert, own.threads, more});
  if (ranks_are_given) return all;
  for (int64_t ranks = own.ranks - 1; ranks >= 1; --ranks)
    if (shared % ranks == 0) divide_experts(config, ranks, all);
  for (int64_t ranks = 2 * own.ranks; ranks <= most_ranks(config); ranks *= 2) {
    if (shared % ranks != 0) break;
    all.push_back({ranks, std::gcd(ranks, config.model.moe.num_experts), own.threads, own.sharding()});
    if (config.model.moe.num_experts == 0) all.back().expert = 1;
  }
  return all;
}

std::vector<std::string> recomputations(const RunConfig& config) {
  constexpr std::array<const char*, 3> kAll = {"none", "selective", "full"};
  const auto own = std::find(kAll.begin(), kAll.end(), config.model.recompute_granularity);
  return {own, kAll.end()};
}

// Ever smaller (micro_batch_size, seq_length), beginning with the config's own.
std::vector<std::pair<int64_t, int64_t>> batches(const RunConfig& config) {
  int64_t size = config.train.micro_batch_size, length = config.data.seq_length;
  std::vector<std::pair<int64_t, int64_t>> all = {{size, length}};
  while (size % 2 == 0) all.emplace_back(size /= 2, length);
  while (length % 2 == 0 && length / 2 >= kShortestSequence) all.emplace_back(size, length /= 2);
  return all;
}

void change(RunConfig& config, std::pair<int64_t, int64_t> batch, const Division& division,
            const std::string& recomputation) {
  config.train.micro_batch_size = batch.first;
  config.data.seq_length = batch.second;
  config.parallel.ranks = division.ranks;
  config.parallel.expert_model_parallel_size = std::max<int64_t>(division.expert, 1);
  config.parallel.threads = division.threads;
  if (division.sharding != config.parallel.sharding()) {
    const bool parameters = division.sharding == Sharding::parameters;
    config.parallel.data_parallel_sharding_strategy = parameters ? "optim_grads_params" : "auto";
    config.parallel.use_distributed_optimizer = config.parallel.use_distributed_optimizer || !parameters;
  }
  int64_t& optimizers = config.parallel.num_distributed_optimizer_instances;
  optimizers = std::gcd(optimizers, division.ranks);  // as many as still divide the ranks
  config.model.recompute_granularity = recomputation;
}

// The changed config, or nullopt if it is invalid.
std::optional<ResolvedConfig> changed(const ResolvedConfig& config, std::pair<int64_t, int64_t> batch,
                                      const Division& division, const std::string& recomputation) try {
  return config.with([&](RunConfig& values) { change(values, batch, division, recomputation); });
} catch (const ConfigError&) {
  return std::nullopt;
}

bool may_fit(const std::optional<ResolvedConfig>& config, int64_t bytes, bool spread) {
  if (!config) return false;
  const int64_t arenas = estimate_arena_bytes(*config), mean = arenas / (*config)->parallel.ranks;
  if ((*config)->parallel.on_gpu()) return mean + gpu_reserve_bytes(*config) <= bytes;
  return (spread ? mean : arenas) + reserve_bytes(*config) <= bytes;
}

Alternative describe(const ResolvedConfig& before, const ResolvedConfig& now, int64_t needed_bytes) {
  const bool same_result =
      before->train.micro_batch_size == now->train.micro_batch_size && before->data.seq_length == now->data.seq_length;
  return {now, changed_keys(before, now), same_result, needed_bytes};
}

std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

}  // namespace

std::optional<Alternative> nearest_fitting(const ResolvedConfig& config, int64_t bytes, const PlanOptions& options) {
  const auto sizes = batches(config);
  const auto layouts = divisions(config, options.spread);
  const auto recomputing = recomputations(config);
  // Try the smallest configuration first: if it does not fit, nothing does.
  if (std::none_of(layouts.begin(), layouts.end(), [&](const Division& division) {
        return may_fit(changed(config, sizes.back(), division, recomputing.back()), bytes, options.spread);
      }))
    return std::nullopt;
  for (const auto& size : sizes)
    for (const Division& division : layouts)
      for (const std::string& recomputation : recomputing) {
        const auto candidate = changed(config, size, division, recomputation);
        if (!may_fit(candidate, bytes, options.spread)) continue;
        const int64_t needed = make_plan(*candidate, options).needed_bytes();
        if (needed <= bytes) return describe(config, *candidate, needed);
      }
  return std::nullopt;
}

void require_fits(const ResolvedConfig& config, const Plan& plan, int64_t bytes, const PlanOptions& options) {
  const int64_t needed = plan.needed_bytes();
  if (bytes == 0 || needed <= bytes) return;
  const int64_t reserve = plan.on_gpu ? plan.gpu_reserve_bytes : plan.reserve_bytes;
  std::string message = cat("the run does not fit: it needs ", bytes_text(needed),
                            plan.on_gpu ? " of each GPU (arena " : " (arenas ", bytes_text(needed - reserve),
                            ", reserve ", bytes_text(reserve), "), but only ", bytes_text(bytes), " are usable. ");
  if (const auto nearest = nearest_fitting(config, bytes, options))
    message += cat(nearest->same_result ? "The same training fits with "
                                        : "The nearest configuration that fits trains differently: ",
                   nearest->flags(), " (", bytes_text(nearest->needed_bytes), ")");
  else if (reserve >= bytes)
    message += cat("The program itself takes the reserve, so that no model fits into less memory");
  else
    message +=
        cat("No layout, recomputation or smaller batch makes it fit: reduce num_layers, num_experts, hidden_size or "
            "ffn_hidden_size; `witan plan` shows what needs how much memory");
  throw OutOfMemoryError(message);
}

void require_host_fits(const Plan& plan, int64_t bytes) {
  if (!plan.on_gpu || plan.offload_bytes() == 0 || bytes == 0 || plan.resident_bytes() <= bytes) return;
  throw OutOfMemoryError(cat(
      "the run does not fit: offload_activations = true pins ", bytes_text(plan.offload_bytes()),
      " of the host's memory, of which it needs ", bytes_text(plan.resident_bytes()), " in all, but only ",
      bytes_text(bytes), " are usable. Set offload_activations to false, or reduce micro_batch_size or seq_length"));
}

Changes changed_keys(RunConfig before, RunConfig now) {
  Changes changes;
  const Fields was = before.fields(), is = now.fields();
  for (size_t i = 0; i < was.size(); ++i) {
    if (was[i].text() == is[i].text()) continue;
    std::string plain = is[i].text();  // Field::text() has TOML's quotes
    std::erase(plain, '"');
    changes.emplace_back(is[i].name, std::move(plain));
  }
  return changes;
}

std::string flags_of(const Changes& changes) {
  std::string text;
  for (const auto& [key, value] : changes) text += cat(text.empty() ? "" : " ", flag_name(key), " ", shell_word(value));
  return text;
}

}  // namespace witan

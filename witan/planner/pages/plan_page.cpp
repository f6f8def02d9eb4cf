#include "witan/planner/pages/plan_page.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/model/counts.h"

namespace witan {
namespace {

std::string count_line(const char* what, int64_t count) {
  return fmt::format("  {:<34} {:>16}\n", what, fmt::format("{}", fmt::group_digits(count)));
}

std::string frozen_lines(const TrainedParameters& trained) {
  std::string lines = count_line("trained, the others frozen", trained.all);
  for (const auto& [format, coded] : trained.coded)
    lines += count_line(cat("  of the frozen kept as ", format).c_str(), coded.elements);
  return lines;
}

std::string counts_section(const Plan& plan) {
  const ParameterCounts& counts = plan.counts;
  return "Parameters\n" + count_line("exact", counts.exact) + count_line("active for one token", counts.active) +
         count_line("of them in experts", counts.experts) + (plan.trained ? frozen_lines(*plan.trained) : "") +
         count_line("as Megatron-LM counts: layers", counts.megatron_layers) +
         count_line("  embedding layers", counts.megatron_embeddings) + count_line("  total", counts.megatron_total()) +
         (plan.assumed_vocabulary ? cat("  ", format_assumption(*plan.assumed_vocabulary), "\n") : "");
}

std::string kind_of(const LayerSpec& layer) {
  const std::string mixer = mixer_kind(layer.mixer).describe();
  if (!layer.has_mlp()) return mixer + ", no MLP";
  return cat(mixer, layer.moe ? ", MoE, experts of " : ", dense, FFN of ", layer.mlp.ffn_hidden_size,
             layer.parallel_mlp ? cat(" beside an FFN of ", layer.parallel_mlp->ffn_hidden_size) : "");
}

// Lists the layers of each kind if there are several kinds.
std::string layers_section(const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> kinds;  // kind, and its layers: "0, 2-4"
  for (size_t first = 0, next = 0; first < plan.layers.size(); first = next) {
    const std::string kind = kind_of(plan.layers[first]);
    for (next = first; next < plan.layers.size() && kind_of(plan.layers[next]) == kind;) ++next;
    auto known = std::ranges::find(kinds, kind, &std::pair<std::string, std::string>::first);
    if (known == kinds.end()) known = kinds.insert(kinds.end(), {kind, ""});
    known->second += cat(known->second.empty() ? "" : ", ", first, next > first + 1 ? cat("-", next - 1) : "");
  }
  if (kinds.size() < 2) return "";
  std::string out = "\nLayers\n";
  for (const auto& [kind, layers] : kinds) out += fmt::format("  {:<34} {}\n", layers, kind);
  return out;
}

std::map<std::string, Cost> parts_of(const RankPlan& rank) {
  std::map<std::string, Cost> parts;
  for (const auto& [part, kernels] : rank.step)
    for (const auto& [kernel, cost] : kernels) parts[part] += cost;
  return parts;
}

std::string param_groups_section(const Plan& plan) {
  if (plan.param_groups.empty()) return "";
  std::string text = "\nParameter groups of the optimizer\n";
  for (const std::string& line : format_param_groups(plan.param_groups)) text += cat("  ", line, "\n");
  return text;
}

std::string flops_section(const Plan& plan) {
  std::map<std::string, Cost> parts;
  for (const RankPlan& rank : plan.ranks)
    for (const auto& [part, cost] : parts_of(rank)) {
      const auto ranks = static_cast<double>(rank.ranks.size());
      parts[part] += {ranks * cost.flops, ranks * cost.bytes};
    }
  std::vector<std::pair<std::string, Cost>> sorted(parts.begin(), parts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.flops > b.second.flops; });
  std::string out = fmt::format("\nOne step: {} tokens, {}FLOP over all ranks\n{}  {:<18} {:>12} {:>8} {:>14}\n",
                                plan.tokens_per_step, format_count(plan.step_flops),
                                plan.ramp.empty() ? "" : cat("  of full size: ", plan.ramp, "\n"), "part", "FLOP",
                                "share", "bytes moved");
  for (const auto& [part, cost] : sorted)
    out += fmt::format("  {:<18} {:>12} {:>6.1f} % {:>14}\n", part, format_count(cost.flops),
                       plan.step_flops > 0 ? 100 * cost.flops / plan.step_flops : 0.0, format_bytes(cost.bytes));
  return out;
}

// Whether the worst case is a large part of the activations: balanced experts would take three quarters or less.
bool worth_a_note(const Plan& plan) {
  return plan.balanced_activations && 4 * *plan.balanced_activations <= 3 * plan.ranks.front().tags.at("activations");
}

// Shows the busiest rank and the sum over all ranks for each operation: the ends of a pipeline send less than the
// stages between them, and owners of a buffer's last part less than the others.
std::string sent_section(const Plan& plan) {
  struct Sent {
    double most = 0, all = 0;
  };
  std::map<std::pair<std::string, std::string>, Sent> sums;
  for (const RankPlan& rank : plan.ranks)
    for (const auto& [axis, operations] : rank.sent)
      for (const auto& [operation, bytes] : operations) {
        if (bytes == 0) continue;
        Sent& sum = sums[{axis, operation}];
        sum.most = std::max(sum.most, bytes);
        sum.all += bytes * static_cast<double>(rank.ranks.size());
      }
  if (sums.empty()) return "";
  std::string out = fmt::format("\nCommunication in one step\n  {:<32} {:<22} {:>14} {:>14}\n", "axis", "operation",
                                "busiest rank", "all ranks");
  for (const auto& [what, sum] : sums)
    out += fmt::format("  {:<32} {:<22} {:>14} {:>14}\n", what.first, what.second, format_bytes(sum.most),
                       format_bytes(sum.all));
  return out;
}

std::string pipeline_section(const Plan& plan) {
  if (plan.stages.size() == 1) return "";
  return fmt::format("\nPipeline of {} stages, {} micro-batches: bubble {:.1f} % of the computation\n",
                     plan.stages.size(), plan.micro_batches, 100 * plan.bubble) +
         format_stages(plan.stages);
}

std::string gpu_section(const Plan& plan) {
  if (!plan.on_gpu) return "";
  std::string out = cat("\nOn GPUs\n  the step is ", format_capture(plan), "\n");
  if (plan.exchanges_rows) out += cat("  tokens for experts ", format_exchange(plan), "\n");
  for (const std::string& slow : plan.slow_paths()) out += cat("  slow: ", slow, "\n");
  return out;
}

std::string pools_note(const Plan& plan) {
  if (!worth_a_note(plan)) return "";
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  return fmt::format(
      "  activations are planned for the worst case of dropless routing, {}:\n  with balanced experts they would take "
      "{} of {}. --moe-expert-capacity-factor bounds them, as does\n  --moe-pool-factor, which drops no token, and "
      "--recompute-granularity full stores those of one layer at a\n  time\n",
      plan.on_gpu ? "which a GPU always reserves" : "of which a CPU only touches what is used",
      bytes(*plan.balanced_activations), bytes(plan.ranks.front().tags.at("activations")));
}

std::string time_section(const Plan& plan, const Timing& timing) {
  const StepTime& step = timing.step;
  std::string out =
      fmt::format("\nPredicted time\n  a step {}, {} tokens/s; {} steps with their evaluations: {}\n  of a step:",
                  format_duration(step.seconds), format_count(static_cast<double>(plan.tokens_per_step) / step.seconds),
                  timing.steps, format_duration(timing.run_seconds));
  std::vector<std::pair<std::string, double>> sorted(step.parts.begin(), step.parts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const char* separator = " ";
  for (const auto& [part, seconds] : sorted) {
    if (seconds < 0.005 * step.seconds) continue;
    out += fmt::format("{}{} {:.0f} %", separator, part, 100 * seconds / step.seconds);
    separator = ", ";
  }
  const Load& load = timing.ceilings.load;
  return out + fmt::format("\n  from ceilings of {} rank{} of {} thread{} in {}, {}\n", load.ranks,
                           load.ranks == 1 ? "" : "s", load.threads, load.threads == 1 ? "" : "s", load.dtype,
                           timing.source);
}

std::string disk_section(const Plan& plan) {
  const double anomalies = static_cast<double>(plan.anomalies) * static_cast<double>(plan.anomaly_bytes);
  std::string text =
      fmt::format("\nDisk\n  a checkpoint {}; the checkpoints that are kept and the one being written {}\n",
                  format_bytes(static_cast<double>(plan.checkpoint_bytes)),
                  format_bytes(plan.disk_bytes - anomalies - plan.rollouts_disk_bytes()));
  if (plan.reference_disk_bytes > 0)
    text += fmt::format("  the weights of the reference {}, written once\n",
                        format_bytes(static_cast<double>(plan.reference_disk_bytes)));
  const std::string all = fmt::format("; all together {}\n", format_bytes(plan.disk_bytes));
  if (plan.rollout_files > 0)
    text += fmt::format("  the answers of a step about {} if all are long, those of {} {} (keep_rollouts){}",
                        format_bytes(static_cast<double>(plan.rollout_bytes)), counted(plan.rollout_files, "step"),
                        format_bytes(plan.rollouts_disk_bytes()), plan.anomalies > 0 ? "\n" : all);
  if (plan.anomalies > 0)
    text += fmt::format("  a step that went wrong {}, of which {} kept at most{}",
                        format_bytes(static_cast<double>(plan.anomaly_bytes)),
                        plan.anomalies == 1 ? "1 is" : fmt::format("{} are", plan.anomalies), all);
  return text;
}

// "embedding, layers 0-1, 4-5, head"
std::string text_of(const StageLayers& stage) {
  std::string text = stage.first ? "embedding" : "";
  const char* separator = stage.first ? ", layers " : "layers ";
  for (const auto& [first, last] : stage.chunks) {
    if (first == last) continue;
    text += cat(separator, first, last > first + 1 ? cat("-", last - 1) : "");
    separator = ", ";
  }
  return text + (stage.last ? ", head" : "");
}

}  // namespace

std::string format_assumption(int64_t vocabulary) {
  return fmt::format("vocabulary: {} tokens are assumed, since there is no tokenizer yet (--tokenizer-vocab-size)",
                     fmt::group_digits(vocabulary));
}

std::string format_stages(const std::vector<StageLayers>& stages) {
  std::string out;
  for (size_t stage = 0; stage < stages.size(); ++stage)
    out += fmt::format("  stage {:<8} {}\n", stage, text_of(stages[stage]));
  return out;
}

std::string format_capture(const Plan& plan) {
  const std::string why = plan.why_eager();
  return why.empty() ? "captured as one CUDA graph" : "eager, because " + why;
}

std::string format_exchange(const Plan& plan) {
  if (plan.rows_by_hosts) {
    Plan of_host = plan;
    of_host.rows_by_hosts = false;
    return cat("go to each host once, and within it ", format_exchange(of_host));
  }
  if (plan.peers) return "are written directly into the memory of the expert's GPU";
  if (plan.through_host) return "go through memory of the host, as these GPUs cannot access each other's";
  if (!plan.peers_allowed) return cat("are exchanged with NCCL, as ", kPeersVariable, "=0 asks for");
  return cat("are exchanged with NCCL: ", plan.processes ? "ranks in different processes" : "these GPUs",
             " cannot access each other's memory");
}

namespace {

// "0-3, 8-11"; if there are many such runs, the first ones and the number of ranks: "0, 8, 16, … (128)".
std::string ranks_text(std::vector<int> ranks) {
  constexpr size_t kRuns = 3;
  std::ranges::sort(ranks);
  std::vector<std::string> runs;
  for (size_t first = 0, end; first < ranks.size(); first = end) {
    for (end = first + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    runs.push_back(end == first + 1 ? cat(ranks[first]) : cat(ranks[first], "-", ranks[end - 1]));
  }
  std::string text;
  for (size_t i = 0; i < std::min(runs.size(), kRuns); ++i) text += cat(i > 0 ? ", " : "", runs[i]);
  return runs.size() <= kRuns ? text : cat(text, ", … (", ranks.size(), ")");
}

// Ranks that need equally much memory share a row.
struct Row {
  std::string label;
  const RankPlan* rank;
};
std::vector<Row> rows_of(const Plan& plan) {
  std::vector<std::pair<const RankPlan*, std::vector<int>>> groups;
  for (const RankPlan& one : plan.ranks) {
    auto same = std::ranges::find_if(groups, [&](const auto& row) {
      return row.first->tags == one.tags && row.first->arena_bytes == one.arena_bytes;
    });
    if (same == groups.end()) same = groups.insert(same, {&one, {}});
    same->second.insert(same->second.end(), one.ranks.begin(), one.ranks.end());
  }
  std::vector<Row> rows;
  for (auto& [rank, ranks] : groups) rows.push_back({ranks_text(std::move(ranks)), rank});
  return rows;
}

}  // namespace

std::string format_memory(const Plan& plan, int64_t usable) {
  std::string out = "\nMemory of each rank: peak by kind, and the arena that holds all of them\n";
  std::vector<Row> rows = rows_of(plan);
  size_t width = 6;
  for (const Row& row : rows) width = std::max(width, row.label.size());
  out += fmt::format("  {:<{}}", "rank", width);
  for (const auto& [tag, bytes] : plan.ranks.front().tags) out += fmt::format(" {:>13}", tag);
  out += fmt::format(" {:>13}\n", "arena");
  for (const auto& [label, rank] : rows) {
    out += fmt::format("  {:<{}}", label, width);
    for (const auto& [tag, bytes] : rank->tags) out += fmt::format(" {:>13}", format_bytes(static_cast<double>(bytes)));
    out += fmt::format(" {:>13}\n", format_bytes(static_cast<double>(rank->arena_bytes)));
  }
  int64_t reference = 0;
  for (const RankPlan& rank : plan.ranks) reference = std::max(reference, rank.reference_bytes);
  if (reference > 0)
    out += fmt::format("  of the weights {} are the frozen reference's{}\n",
                       format_bytes(static_cast<double>(reference)), rows.size() > 1 ? ", on the rank with most" : "");
  if (!std::ranges::all_of(plan.ranks, &RankPlan::exact))
    out += "  of ranks that share a row the one with the largest shard was planned; the others need no more\n";
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  const int64_t reserve = plan.on_gpu ? plan.gpu_reserve_bytes : plan.reserve_bytes;
  out += fmt::format("  {} {} + reserve for everything else {} = {}",
                     plan.on_gpu   ? "each GPU: arena"
                     : plan.spread ? "each rank: arena"
                                   : "arenas",
                     bytes(plan.needed_bytes() - reserve), bytes(reserve), bytes(plan.needed_bytes()));
  if (usable > 0)
    out += fmt::format(" of {} usable{}", bytes(usable), plan.needed_bytes() > usable ? ": IT DOES NOT FIT" : "");
  if (plan.on_gpu && !plan.spread) out += cat("\n  host memory: ", bytes(plan.resident_bytes()));
  if (plan.offload_bytes() > 0)
    out += fmt::format("\n  of the host's memory {} are pinned for activations (offload_activations)",
                       bytes(plan.offload_bytes()));
  return out + "\n";
}

std::string format_plan(const Plan& plan, int64_t usable, const std::optional<Timing>& timing) {
  return counts_section(plan) + layers_section(plan) + param_groups_section(plan) + flops_section(plan) +
         format_memory(plan, usable) + pools_note(plan) + disk_section(plan) + pipeline_section(plan) +
         gpu_section(plan) + sent_section(plan) +
         (timing ? time_section(plan, *timing)
          : plan.on_gpu
              ? "\nNo time is predicted: that needs ceilings measured on the GPUs, and this machine has fewer of them\n"
              : "");
}

std::string plan_json(const Plan& plan, int64_t usable, const std::optional<Timing>& timing) {
  nlohmann::ordered_json json;
  json["tokens_per_step"] = plan.tokens_per_step;
  if (!plan.ramp.empty()) json["ramp"] = plan.ramp;
  json["parameters"] = {{"exact", plan.counts.exact}, {"active", plan.counts.active}, {"experts", plan.counts.experts}};
  if (plan.trained) {
    json["parameters"]["trained"] = plan.trained->all;
    for (const auto& [format, coded] : plan.trained->coded)
      json["parameters"]["codes"][format] = {{"elements", coded.elements}, {"bytes", coded.bytes}};
  }
  if (plan.assumed_vocabulary) json["assumed_vocabulary"] = *plan.assumed_vocabulary;
  for (const ParamGroupUse& group : plan.param_groups)
    json["param_groups"].push_back({{"group", group.label},
                                    {"parameters", group.parameters},
                                    {"tensors", group.tensors},
                                    {"optimizer", group.optimizer},
                                    {"lr", group.lr},
                                    {"min_lr", group.min_lr},
                                    {"weight_decay", group.weight_decay},
                                    {"shard_by", group.shard_by}});
  json["step_flops"] = plan.step_flops;
  json["bubble"] = plan.bubble;
  for (const RankPlan& rank : plan.ranks) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::object();
    for (const auto& [part, cost] : parts_of(rank)) parts[part] = {{"flops", cost.flops}, {"bytes", cost.bytes}};
    json["ranks"].push_back({{"rank", rank.rank},
                             {"ranks", rank.ranks},
                             {"exact", rank.exact},
                             {"arena_bytes", rank.arena_bytes},
                             {"tags", rank.tags},
                             {"reference_bytes", rank.reference_bytes},
                             {"offload_bytes", rank.offload_bytes},
                             {"parts", parts},
                             {"sent", rank.sent}});
  }
  json["reserve_bytes"] = plan.reserve_bytes;
  json["offload_bytes"] = plan.offload_bytes();
  json["resident_bytes"] = plan.resident_bytes();
  json["usable_bytes"] = usable;
  json["needed_bytes"] = plan.needed_bytes();
  json["checkpoint_bytes"] = plan.checkpoint_bytes;
  json["anomaly_bytes"] = plan.anomaly_bytes;
  json["reference_disk_bytes"] = plan.reference_disk_bytes;
  json["rollout_bytes"] = plan.rollout_bytes;
  json["rollout_files"] = plan.rollout_files;
  json["disk_bytes"] = std::llround(std::min(plan.disk_bytes, 0x1p62));
  if (plan.balanced_activations) json["balanced_activation_bytes"] = *plan.balanced_activations;
  if (plan.on_gpu)
    json["gpu"] = {{"recorded", plan.why_eager().empty()},
                   {"why_eager", plan.why_eager()},
                   {"exchange", !plan.exchanges_rows ? "none"
                                : plan.peers         ? "peer memory"
                                : plan.through_host  ? "host memory"
                                                     : "NCCL"},
                   {"exchange_by_hosts", plan.rows_by_hosts},
                   {"slow_paths", plan.slow_paths()}};
  json["fits"] = usable == 0 || plan.needed_bytes() <= usable;
  if (timing) {
    json["step_seconds"] = timing->step.seconds;
    json["run_seconds"] = timing->run_seconds;
    json["step_seconds_by_part"] = timing->step.parts;
    json["ceilings"] = timing->source;
  }
  return json.dump(2) + "\n";
}

namespace {

std::string line(const char* what, double with, double without) {
  constexpr double kMegabyte = 1 << 20;  // Megatron-LM's MB
  return fmt::format("  {:<34} {:>13.2f} MB {:>13.2f} MB\n", what, with / kMegabyte, without / kMegabyte);
}

}  // namespace

std::string format_megatron_memory(const RunConfig& config) {
  if (config.parallel.model_ranks() > 1) return "";
  const int64_t ranks = config.parallel.ranks, divided = config.parallel.expert_model_parallel_size;
  std::string out = fmt::format(
      "\nWeights, gradients and optimizer of each of {} rank{} in Megatron-LM, by its formula\n  {:<34} {:>16} "
      "{:>16}\n",
      ranks, ranks == 1 ? "" : "s", "", "distributed opt.", "without");
  out += line("as it prints them", megatron_weight_and_optimizer_bytes(config.model, ranks, true),
              megatron_weight_and_optimizer_bytes(config.model, ranks, false));
  const std::string exact = divided > 1 ? fmt::format("exactly, experts over {} ranks", divided) : "exactly";
  out += line(exact.c_str(), weight_and_optimizer_bytes(config.model, ranks, divided, true),
              weight_and_optimizer_bytes(config.model, ranks, divided, false));
  return out;
}

}  // namespace witan

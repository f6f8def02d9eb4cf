#include "witan/planner/pages/search_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/planner/pages/plan_page.h"
#include "witan/planner/search/fit.h"

namespace witan {
namespace {

// Bytes that the busiest rank sends, by axis.
std::map<std::string, double> sent_by_axis(const Plan& plan) {
  std::map<std::string, double> most;
  for (const RankPlan& rank : plan.ranks)
    for (const auto& [axis, operations] : rank.sent) {
      double sum = 0;
      for (const auto& [operation, bytes] : operations) sum += bytes;
      most[axis] = std::max(most[axis], sum);
    }
  return most;
}

// The busiest axes: "tensor 12.3 GiB, shard 1.50 GiB".
std::string sent_text(const Plan& plan) {
  constexpr size_t kShown = 4;
  constexpr double kLeast = 1 << 20;
  const auto by_axis = sent_by_axis(plan);
  std::vector<std::pair<std::string, double>> sorted(by_axis.begin(), by_axis.end());
  std::ranges::stable_sort(sorted, std::greater(), &std::pair<std::string, double>::second);
  std::string text;
  for (size_t i = 0; i < std::min(sorted.size(), kShown) && sorted[i].second >= kLeast; ++i)
    text += cat(text.empty() ? "" : ", ", sorted[i].first, " ", format_bytes(sorted[i].second));
  return text.empty() ? "almost nothing" : text;
}

// The fields of held keys, bound to `base`.
Fields held_fields(RunConfig& base, const SearchOptions& options) {
  Fields fields = base.fields();
  std::erase_if(fields, [&](const Field& field) { return !options.limits.held.contains(field.name); });
  return fields;
}

// Values of layout keys are booleans, integers or words.
nlohmann::ordered_json json_of(const Field& field) {
  if (auto* const* flag = std::get_if<bool*>(&field.value)) return **flag;
  if (auto* const* number = std::get_if<int64_t*>(&field.value)) return **number;
  return *std::get<std::string*>(field.value);
}

double tokens_per_gpu(const FoundLayout& one) {
  return static_cast<double>(one.plan.tokens_per_step) / one.time.seconds /
         static_cast<double>(one.config->parallel.ranks);
}

std::string rows(const std::vector<FoundLayout>& layouts, size_t first_number) {
  std::string out = fmt::format("  {:>2} {:>10} {:>11} {:>13} {:>7}  {}\n", "", "memory", "a step", "tokens/s/GPU",
                                "bubble", "layout, and bytes that a rank sends in a step");
  for (size_t i = 0; i < layouts.size(); ++i) {
    const FoundLayout& one = layouts[i];
    out += fmt::format(
        "  {:>2} {:>10} {:>11} {:>13} {:>5.1f} %  {}; {}\n", first_number > 0 ? cat(first_number + i) : "",
        format_bytes(static_cast<double>(one.plan.needed_bytes())), format_duration(one.time.seconds),
        format_count(tokens_per_gpu(one)), 100 * one.plan.bubble, mesh_text(one.config), rest_text(one.config));
    out += fmt::format("  {:>2} {:>10} {:>11} {:>13} {:>7}    {}\n", "", "", "", "", "", sent_text(one.plan));
  }
  return out;
}

std::string dropped(const SearchResult& result, const SearchOptions& options) {
  int64_t refused = 0;
  std::vector<std::pair<std::string, int64_t>> reasons(result.refused.begin(), result.refused.end());
  std::ranges::stable_sort(reasons, std::greater(), &std::pair<std::string, int64_t>::second);
  std::string keys;
  for (const auto& [key, count] : reasons) {
    refused += count;
    keys += fmt::format("{}{} {}", keys.empty() ? " (" : ", ", count, key);
  }
  const auto line = [](int64_t count, const std::string& what) { return fmt::format("  {:>7}  {}\n", count, what); };
  return "\nLayouts\n" + line(result.considered, "considered") +
         line(refused, "impossible" + (keys.empty() ? "" : keys + ")")) +
         line(result.too_large, "too large: parameters, gradients and optimizer state alone do not fit") +
         line(result.estimated_too_large, "estimated not to fit with activations") +
         line(result.slower, "estimated to be slower than those planned") +
         line(result.planned, cat("planned, of which ", result.fit, " fit; the fastest ", options.shown,
                                  " of them exactly, to the byte"));
}

std::string assumptions(const Cluster& cluster) {
  return fmt::format(
      "\nTimes are predicted for {} from its data sheet and what kernels and exchanges of H100s and H200s reach of "
      "theirs;\nlinks {:.0f} GB/s within a host of {}, {:.0f} GB/s a GPU between hosts; experts are taken to be "
      "balanced. They are for\nranking layouts, not measurements.\n",
      cluster.gpu.name, cluster.link_bytes_s / 1e9, cluster.gpus_per_host, cluster.network_bytes_s / 1e9);
}

std::string flags_for(const RunConfig& base, const FoundLayout& one) {
  return flags_of(changed_keys(base, one.asked));
}

// Why all layouts are impossible, the most frequent reasons first.
std::string impossible(const SearchResult& result, const RunConfig& base, const SearchOptions& options) {
  constexpr size_t kShown = 5;
  std::vector<std::pair<std::string, int64_t>> reasons(result.refused.begin(), result.refused.end());
  std::ranges::stable_sort(reasons, std::greater(), &std::pair<std::string, int64_t>::second);
  std::string out = fmt::format(
      "\nNo layout of {} GPUs is compatible with this model and its batch sizes. Reasons, with one example each:\n",
      options.limits.gpus);
  for (size_t i = 0; i < std::min(reasons.size(), kShown); ++i) out += cat("  ", result.why.at(reasons[i].first), "\n");
  if (!options.limits.held.empty())
    out += cat("All of these have ", held_text(base, options), ", as given: leave any of it out to search over it.\n");
  return out + cat("Other numbers of GPUs: ", nearest_gpus_text(result), ".\n");
}

std::string ways_out(const SearchResult& result, const RunConfig& base, const SearchOptions& options) {
  if (result.possible == 0) return impossible(result, base, options);
  std::string out = fmt::format("\nNo layout{} fits in {} per GPU.",
                                options.limits.held.empty() ? "" : " with " + held_text(base, options),
                                format_bytes(static_cast<double>(options.memory)));
  if (result.near.empty()) return out + " Use more GPUs, GPUs with more memory, or fewer num_layers or num_experts.\n";
  const FoundLayout& one = result.near.front();
  return out + fmt::format(
                   " The nearest layout needs {} more: use GPUs with {}, or more GPUs, or {}a shorter --seq-length.\n",
                   format_bytes(static_cast<double>(one.plan.needed_bytes() - options.memory)),
                   format_bytes(static_cast<double>(one.plan.needed_bytes())),
                   one.config->model.moe.num_experts > 0 && one.config->model.moe.moe_expert_capacity_factor == 0
                       ? "--moe-expert-capacity-factor, which bounds the tokens of an expert, or --moe-pool-factor, "
                         "which drops none, or "
                       : "");
}

}  // namespace

std::string held_text(const RunConfig& base, const SearchOptions& options) {
  RunConfig config = base;  // fields() needs a config that is not const
  std::string text;
  for (const Field& field : held_fields(config, options)) {
    std::string value = field.text();  // Field::text() has TOML's quotes
    std::erase(value, '"');
    text += cat(text.empty() ? "" : ", ", field.name, " = ", value);
  }
  return text;
}

std::string nearest_gpus_text(const SearchResult& result) {
  const auto& near = result.nearest_gpus;
  if (near.empty()) return "no number up to twice as many works either: change --global-batch-size";
  return near.size() == 1 ? cat("the nearest that works is ", near[0], near[0] == 1 ? " GPU" : " GPUs")
                          : cat("the nearest that work are ", near[0], " and ", near[1], " GPUs");
}

std::string format_search(const SearchResult& result, const RunConfig& base, const Cluster& cluster,
                          const SearchOptions& options, const std::function<std::string(const RunConfig&)>& command) {
  std::string out = fmt::format("{} GPUs of {}, {} a GPU\n", options.limits.gpus, cluster.gpu.name,
                                format_bytes(static_cast<double>(options.memory)));
  if (options.assumed_vocabulary) out += format_assumption(*options.assumed_vocabulary) + "\n";
  if (!options.limits.held.empty()) out += cat("Held fixed, as given: ", held_text(base, options), "\n");
  if (!result.best.empty()) out += "\nLayouts that fit, the fastest first\n" + rows(result.best, 1);
  if (!result.near.empty()) out += "\nLayouts that nearly fit\n" + rows(result.near, 0);
  out += dropped(result, options) + assumptions(cluster);
  if (result.best.empty()) return out + ways_out(result, base, options);
  const FoundLayout& best = result.best.front();
  out += fmt::format("\nThe first one, as flags to add to this command\n    {}\nand as a complete command\n    {}\n",
                     flags_for(base, best), command(best.asked));
  if (best.config->train.micro_batch_size != base.train.micro_batch_size)
    out += fmt::format(
        "Its micro_batch_size is not the {} of this command: router losses are then means over other "
        "micro-batches;\n--keep-micro-batch-size searches with that size only.\n",
        base.train.micro_batch_size);
  return out;
}

std::string search_json(const SearchResult& result, const RunConfig& base, const SearchOptions& options) {
  nlohmann::ordered_json json;
  json["gpus"] = options.limits.gpus;
  json["memory_bytes"] = options.memory;
  json["held"] = nlohmann::ordered_json::object();
  RunConfig config = base;  // fields() needs a config that is not const
  for (const Field& field : held_fields(config, options)) json["held"][field.name] = json_of(field);
  json["considered"] = result.considered;
  json["refused"] = result.refused;
  if (options.assumed_vocabulary) json["assumed_vocabulary"] = *options.assumed_vocabulary;
  if (result.possible == 0) json["nearest_gpus"] = result.nearest_gpus;
  json["too_large"] = result.too_large;
  json["estimated_too_large"] = result.estimated_too_large;
  json["slower"] = result.slower;
  json["planned"] = result.planned;
  json["fit"] = result.fit;
  const auto list = [&](const std::vector<FoundLayout>& layouts) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const FoundLayout& one : layouts)
      all.push_back({{"mesh", mesh_text(one.config)},
                     {"flags", flags_for(base, one)},
                     {"needed_bytes", one.plan.needed_bytes()},
                     {"step_seconds", one.time.seconds},
                     {"tokens_per_second_per_gpu", tokens_per_gpu(one)},
                     {"bubble", one.plan.bubble},
                     {"sent", sent_by_axis(one.plan)}});
    return all;
  };
  json["best"] = list(result.best);
  json["near"] = list(result.near);
  return json.dump(2) + "\n";
}

}  // namespace witan

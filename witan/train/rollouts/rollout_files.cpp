#include "witan/train/rollouts/rollout_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "witan/base/files/line_file.h"
#include "witan/base/json.h"

namespace witan {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".jsonl";

std::vector<std::pair<int64_t, fs::path>> rollout_files(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const char* const end = name.data() + name.size() - kSuffix.size();
    int64_t step = 0;
    const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (error == std::errc() && rest == end) files.emplace_back(step, entry.path());
  }
  return files;
}

// The first of the steps that were sampled together with this file's. One that does not say it may be any.
int64_t sampling_began(const fs::path& file) {
  LinesForward lines(file);
  if (!lines.next()) return 1;
  const Json line = parse_json(lines.line(), file.string());
  return line.value("sampled_at", int64_t{1});
}

}  // namespace

fs::path rollout_file(const fs::path& folder, int64_t step) {
  return folder / fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
}

void remove_old_rollouts(const fs::path& folder, int64_t step, int64_t kept, const std::vector<int64_t>& checkpoints) {
  for (const auto& [of, file] : rollout_files(folder)) {
    if (of > step - kept) continue;
    const auto before = [of = of](int64_t checkpoint) { return checkpoint < of; };
    if (std::ranges::any_of(checkpoints, before)) {
      const int64_t began = sampling_began(file);
      if (std::ranges::any_of(checkpoints,
                              [&](int64_t checkpoint) { return before(checkpoint) && began <= checkpoint; }))
        continue;
    }
    fs::remove(file);
  }
}

// Of a token: its text, its id with a comma and, if it was sampled, its log probability. References count like answers.
int64_t rollout_file_bytes(const RunConfig& config) {
  constexpr int64_t kLine = 400, kText = 5, kId = 7, kLogprob = 22, kMask = 2, kPackedRoute = 3;
  const RolloutConfig& rollout = config.rollout;
  if (!rollout.rollouts) return 0;
  const bool turns = rollout.max_turns > 1;
  const int64_t tokens = config.data.seq_length + 1, sampled = rollout.max_completion_length;
  int64_t line = kLine + tokens * (kText + kId) + sampled * (kLogprob + kText + (turns ? kText + kMask : 0));
  if (rollout.router_replay) {
    const auto layers = config.model.layers();
    line += kPackedRoute * tokens * config.model.moe.moe_router_topk *
            std::ranges::count_if(layers, [](const LayerSpec& layer) { return layer.moe; });
  }
  return line * config.train.global_batch_size * rollout.max_num_gen_batches;
}

int64_t kept_rollout_files(const RunConfig& config) {
  const RolloutConfig& rollout = config.rollout;
  if (!rollout.rollouts) return 0;
  const int64_t all = config.train.train_iters;
  return rollout.keep_rollouts > 0 ? std::min(all, rollout.keep_rollouts + rollout.steps_per_generation - 1) : all;
}

}  // namespace witan

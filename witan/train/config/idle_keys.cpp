#include "witan/train/config/idle_keys.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/train/config/key_uses.h"

namespace witan {
namespace {

std::vector<KeyUse> all_uses(const RunConfig& config) {
  std::vector<KeyUse> all = model_key_uses();
  const auto add = [&](std::vector<KeyUse> uses) { std::ranges::move(uses, std::back_inserter(all)); };
  if (config.model.moe.num_experts > 0) add(expert_key_uses());
  add(run_key_uses());
  return all;
}

// A key and its value as in a TOML file, without quotes.
std::string assignment(const Fields& fields, std::string_view key) {
  std::string text = std::ranges::find(fields, key, &Field::name)->text();
  if (text == "\"\"") return cat(key, " is empty");
  std::erase(text, '"');
  return cat(key, " = ", text);
}

}  // namespace

std::vector<IdleKey> idle_keys(const RunConfig& config) {
  RunConfig copy = config;  // fields() is not const
  const Fields fields = copy.fields();
  const std::vector<KeyUse> uses = all_uses(config);
  std::vector<const KeyUse*> missing;
  for (const KeyUse& use : uses)
    if (!use.applies(config)) missing.push_back(&use);
  std::vector<IdleKey> idle;
  for (const Field& field : fields) {
    if (field.section == "moe" && field.name != "num_experts" && config.model.moe.num_experts == 0) {
      idle.push_back({field.name, "num_experts above 0; the model is dense"});
      continue;
    }
    const auto found = std::ranges::find_if(
        missing, [&](const KeyUse* use) { return std::ranges::find(use->keys, field.name) != use->keys.end(); });
    if (found == missing.end()) continue;
    const KeyUse& use = **found;
    idle.push_back(
        {field.name, use.by.empty() ? std::string(use.needs) : cat(use.needs, "; here ", assignment(fields, use.by))});
  }
  return idle;
}

bool norm_fusion_applies(const RunConfig& config) {
  return std::ranges::all_of(norm_fusion_uses(), [&](const KeyUse& use) { return use.applies(config); });
}

std::vector<std::string> describe_idle(const std::vector<IdleKey>& idle, const Fields& fields) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const IdleKey& one : idle) {
    auto known = std::ranges::find(by_reason, one.needs, &decltype(by_reason)::value_type::first);
    if (known == by_reason.end()) known = by_reason.insert(by_reason.end(), {one.needs, {}});
    known->second.push_back(assignment(fields, one.key));
  }
  std::vector<std::string> sentences;
  for (const auto& [needs, keys] : by_reason) {
    std::string list;
    for (size_t i = 0; i < keys.size(); ++i) list += cat(i == 0 ? "" : i + 1 == keys.size() ? " and " : ", ", keys[i]);
    sentences.push_back(
        cat(list, keys.size() == 1 ? " has no effect: it needs " : " have no effect: they need ", needs));
  }
  return sentences;
}

}  // namespace witan

#include "witan/fetch/presets.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::fetch {

const std::vector<FetchPreset>& fetch_presets() {
  static const std::vector<FetchPreset> presets = {
      {"fineweb-edu", "HuggingFaceFW/fineweb-edu", "default", {}},
      {"fineweb-edu-10bt", "HuggingFaceFW/fineweb-edu", "sample-10BT", {}},
      {"fineweb-edu-100bt", "HuggingFaceFW/fineweb-edu", "sample-100BT", {}},
      {"fineweb-edu-350bt", "HuggingFaceFW/fineweb-edu", "sample-350BT", {}},
      {"dclm-baseline", "mlfoundations/dclm-baseline-1.0", "", {"*.jsonl.zst"}},
      {"dclm-baseline-10pct", "mlfoundations/dclm-baseline-1.0", "", {"global-shard_01_of_10/*.jsonl.zst"}},
  };
  return presets;
}

const FetchPreset& fetch_preset(const std::string& name) {
  const auto& presets = fetch_presets();
  const auto found = std::ranges::find(presets, name, &FetchPreset::name);
  if (found != presets.end()) return *found;
  std::vector<std::string> names;
  std::string all;
  for (const FetchPreset& preset : presets) {
    names.push_back(preset.name);
    all += (all.empty() ? "" : ", ") + preset.name;
  }
  throw UsageError(cat("there is no preset \"", clipped(name), "\"", suggestion(name, names), ": it is one of ", all));
}

}  // namespace witan::fetch

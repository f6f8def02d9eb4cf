// Corpora by a name of their own: `witan data fetch --preset NAME`.
#pragma once

#include <string>
#include <vector>

namespace witan::fetch {

struct FetchPreset {
  std::string name, repository, subset;
  std::vector<std::string> include;
};

const std::vector<FetchPreset>& fetch_presets();

// Throws UsageError for a name that none has.
const FetchPreset& fetch_preset(const std::string& name);

}  // namespace witan::fetch

#include "witan/cli/config/differences.h"

#include <algorithm>

#include "witan/cli/config/field_json.h"

namespace witan::cli {

std::vector<KeyDifference> differing_keys(std::vector<RunConfig> configs) {
  std::vector<Fields> fields;
  for (RunConfig& config : configs) fields.push_back(config.fields());
  std::vector<KeyDifference> found;
  for (size_t i = 0; !fields.empty() && i < fields[0].size(); ++i) {
    const Field& field = fields[0][i];
    if (field.name == "run" || field.name == "runs_folder") continue;
    KeyDifference difference{field.section, field.name, {}, {}};
    for (const Fields& one : fields) difference.values.push_back(one[i].text());
    for (const Fields& one : fields) difference.json.push_back(json_value(one[i]));
    if (std::ranges::adjacent_find(difference.values, std::not_equal_to<>()) != difference.values.end())
      found.push_back(std::move(difference));
  }
  return found;
}

}  // namespace witan::cli

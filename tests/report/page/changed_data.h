// What the page makes of PlotHistory::since(), written once more.
#pragma once

#include <nlohmann/json.hpp>

namespace witan::test {

inline nlohmann::ordered_json changed_data(const nlohmann::ordered_json& old, const nlohmann::ordered_json& changes) {
  using nlohmann::ordered_json;
  if (!changes.is_structured()) return changes;
  ordered_json out = changes.is_array() ? ordered_json::array() : ordered_json::object();
  if (changes.contains("keep")) {
    out = ordered_json::array();
    for (size_t i = 0; i < changes["keep"]; ++i) out.push_back(old.at(i));  // there must be so many
    for (const ordered_json& one : changes["then"]) out.push_back(one);
    return out;
  }
  if (changes.is_array())
    for (size_t i = 0; i < changes.size(); ++i)
      out.push_back(changed_data(old.is_array() && i < old.size() ? old[i] : nullptr, changes[i]));
  else
    for (const auto& [key, one] : changes.items())
      out[key] = changed_data(old.is_object() && old.contains(key) ? old[key] : nullptr, one);
  return out;
}

}  // namespace witan::test

#include "witan/report/page/plot_history.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

using nlohmann::ordered_json;

// Whether this is a list of numbers or points rather than of objects, whose members are compared one by one.
bool is_plain_list(const ordered_json& json) {
  return json.is_array() && (json.empty() || !json.front().is_object());
}

// The value at a key or index of `parent`; null if there is none.
template <class Key>
const ordered_json* child(const ordered_json* parent, const Key& key) {
  if (parent == nullptr) return nullptr;
  if constexpr (std::is_integral_v<Key>)
    return parent->is_array() && key < parent->size() ? &(*parent)[key] : nullptr;
  else
    return parent->is_object() && parent->contains(key) ? &(*parent)[key] : nullptr;
}

size_t shared_elements(const ordered_json& list, const ordered_json* before) {
  if (before == nullptr || !before->is_array()) return 0;
  const auto [end, ignored] = std::mismatch(list.begin(), list.end(), before->begin(), before->end());
  return static_cast<size_t>(end - list.begin());
}

// visit(place, list, the list there in `before` or null) for each plain list in `json`.
void for_each_list(const ordered_json& json, const ordered_json* before, const std::string& place, const auto& visit) {
  if (is_plain_list(json)) return visit(place, json, before);
  if (json.is_array())
    for (size_t i = 0; i < json.size(); ++i) for_each_list(json[i], child(before, i), cat(place, '/', i), visit);
  if (json.is_object())
    for (const auto& [key, value] : json.items()) for_each_list(value, child(before, key), cat(place, '/', key), visit);
}

// `json` with list_json(place, list) in the place of each plain list.
ordered_json with_lists(const ordered_json& json, const std::string& place, const auto& list_json) {
  if (is_plain_list(json)) return list_json(place, json);
  if (!json.is_structured()) return json;
  ordered_json out = json.is_array() ? ordered_json::array() : ordered_json::object();
  if (json.is_array())
    for (size_t i = 0; i < json.size(); ++i) out.push_back(with_lists(json[i], cat(place, '/', i), list_json));
  else
    for (const auto& [key, value] : json.items()) out[key] = with_lists(value, cat(place, '/', key), list_json);
  return out;
}

}  // namespace

void PlotHistory::push(ordered_json data) {
  std::map<std::string, std::deque<size_t>> shared;
  const ordered_json* before = version_ > 0 ? &data_ : nullptr;
  for_each_list(data, before, "", [&](const std::string& place, const ordered_json& list, const ordered_json* earlier) {
    std::deque<size_t>& of_list = shared[place];
    if (const auto old = shared_.find(place); old != shared_.end()) of_list = std::move(old->second);
    of_list.push_back(shared_elements(list, earlier));
    if (std::ssize(of_list) > kRemembered) of_list.pop_front();
  });
  shared_ = std::move(shared);
  data_ = std::move(data);
  ++version_;
}

bool PlotHistory::remembers(int64_t known) const {
  return known > 0 && known <= version_ && known >= version_ - kRemembered;
}

ordered_json PlotHistory::since(int64_t known) const {
  const int64_t behind = version_ - known;
  return with_lists(data_, "", [&](const std::string& place, const ordered_json& list) {
    size_t keep = list.size();
    const std::deque<size_t>& shared = shared_.at(place);
    for (auto i = shared.end() - std::min(behind, std::ssize(shared)); i != shared.end(); ++i)
      keep = std::min(keep, *i);
    return ordered_json{{"keep", keep},
                        {"then", ordered_json(list.begin() + static_cast<ptrdiff_t>(keep), list.end())}};
  });
}

}  // namespace witan

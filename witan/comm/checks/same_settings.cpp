#include "witan/comm/checks/same_settings.h"

#include <algorithm>
#include <map>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/comm/checks/fingerprint.h"
#include "witan/comm/host_group.h"
#include "witan/comm/texts.h"

namespace witan {
namespace {

constexpr char kEndOfKey = '\0', kEndOfValue = '\x01';
constexpr size_t kMostNamed = 4;  // keys

std::string packed(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += key + kEndOfKey + value + kEndOfValue;
  return text;
}

// Of what packed() made.
Settings unpacked(const std::string& text) {
  Settings settings;
  for (size_t at = 0; at < text.size();) {
    const size_t key = text.find(kEndOfKey, at), value = text.find(kEndOfValue, at);
    require<CommError>(key < value && value < text.size(), "malformed settings from another rank");
    settings.emplace_back(text.substr(at, key - at), text.substr(key + 1, value - key - 1));
    at = value + 1;
  }
  return settings;
}

// Of one key: the values, and who has each. A rank that does not know the key has none.
std::string values_of(const std::string& key, const std::vector<Settings>& settings) {
  std::map<std::string, std::vector<int>> holders;
  for (size_t rank = 0; rank < settings.size(); ++rank) {
    const auto found = std::ranges::find(settings[rank], key, &Settings::value_type::first);
    holders[found == settings[rank].end() ? "(unknown)" : found->second].push_back(static_cast<int>(rank));
  }
  if (holders.size() < 2) return "";
  std::vector<std::pair<std::string, std::vector<int>>> values(holders.begin(), holders.end());
  std::ranges::stable_sort(values, [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size() : a.second < b.second;
  });
  std::string text = key + " =";
  for (size_t i = 0; i < values.size(); ++i)
    text += cat(i == 0   ? " "
                : i == 1 ? ", but "
                         : ", ",
                values[i].first.empty() ? "\"\"" : values[i].first, " on ", rank_list(values[i].second));
  return text;
}

}  // namespace

std::string difference(const std::vector<Settings>& settings) {
  std::vector<std::string> keys;
  for (const Settings& of_rank : settings)
    for (const auto& [key, value] : of_rank)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  std::vector<std::string> named;
  for (const std::string& key : keys)
    if (std::string one = values_of(key, settings); !one.empty()) named.push_back(std::move(one));
  std::string text;
  for (size_t i = 0; i < std::min(named.size(), kMostNamed); ++i) text += (i == 0 ? "" : "; ") + named[i];
  return named.size() <= kMostNamed ? text : cat(text, "; and ", named.size() - kMostNamed, " more");
}

void require_same_settings(Stream& stream, Group& world, const Settings& own) {
  const std::string text = packed(own);
  Hasher hasher;
  hasher.update(text.data(), text.size());
  const auto hash = static_cast<int64_t>(hasher.low64());
  const Tensor mine = stream.empty({1}, DType::i64, MemoryTag::communication);
  stream.write(mine, &hash);
  if (ranks_that_differ(stream, world, mine).empty()) return;
  std::vector<Settings> settings;  // on rank 0
  for (const std::string& one : gather_texts(world, stream, text)) settings.push_back(unpacked(one));
  const std::string differs = broadcast_text(world, stream, difference(settings), 0);
  world.barrier(stream);  // nobody leaves before all know
  throw SettingsDifferError(cat("the ranks were started differently: ", differs,
                                ". Start all of them with the same command and configuration"));
}

}  // namespace witan

// The report of `witan data stats`: one offline file with pictures, without scripts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "witan/data/stats/dataset_statistics.h"

namespace witan::cli {

struct StatsSubject {
  std::string name;                            // of what was counted
  std::shared_ptr<const Tokenizer> tokenizer;  // null: none was used
  std::string tokenizer_name;
};

// What each of these pages has in its head, and no other.
inline constexpr const char* kStatsTitle = "Witan dataset report";
std::string stats_page(const DatasetStatistics& found, const StatsSubject& subject);
// The same figures for programs.
nlohmann::ordered_json stats_json(const DatasetStatistics& found, const StatsSubject& subject);

// "12.3 %"; of nothing, 0.
std::string share_of(double part, double all);
struct ScriptShare {
  std::string name;
  int64_t letters = 0, documents = 0;
};
// Scripts that occur, by their letters, the largest first.
std::vector<ScriptShare> scripts_by_size(const DatasetStatistics& found);
struct TokenShare {
  int32_t id = 0;
  int64_t count = 0;
};
// Tokens that occur, the most frequent first.
std::vector<TokenShare> tokens_by_count(const DatasetStatistics& found);

}  // namespace witan::cli

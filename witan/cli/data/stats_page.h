// The report of `witan data stats`: one file with pictures, which needs neither scripts nor a network.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "witan/data/stats/dataset_statistics.h"

namespace witan::cli {

struct StatsSubject {
  std::string name;                            // the corpus or shards that were counted
  std::shared_ptr<const Tokenizer> tokenizer;  // null: none
  std::string tokenizer_name;
};

// The title of these pages, by which they are recognised.
inline constexpr const char* kStatsTitle = "Witan dataset report";
std::string stats_page(const DatasetStatistics& found, const StatsSubject& subject);
// The page's figures for programs.
nlohmann::ordered_json stats_json(const DatasetStatistics& found, const StatsSubject& subject);

// "12.3 %"; "0 %" if `all` is 0.
std::string share_of(double part, double all);
struct ScriptShare {
  std::string name;
  int64_t letters = 0, documents = 0;
};
// Scripts that occur, sorted by their number of letters, the largest first.
std::vector<ScriptShare> scripts_by_size(const DatasetStatistics& found);
struct TokenShare {
  int32_t id = 0;
  int64_t count = 0;
};
// Tokens that occur, the most frequent first.
std::vector<TokenShare> tokens_by_count(const DatasetStatistics& found);

}  // namespace witan::cli

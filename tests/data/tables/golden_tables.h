// The golden tables (tests/golden/data/tables/make_golden.py): one table in many files, and its expected contents.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "data/data_support.h"
#include "witan/base/json.h"
#include "witan/data/tables/table_reader.h"

namespace witan {

// `name` is relative to the folder of the tables: "pages.parquet", "encodings/zstd_plain_v1.parquet".
inline fs::path golden_table(const std::string& name) {
  return golden("tables/" + name);
}

// All files of the golden table whose names end with `suffix`, in every encoding.
inline std::vector<fs::path> golden_tables(const std::string& suffix) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(golden("tables"))) {
    const std::string name = entry.path().filename().string();
    const std::string kind = name.substr(0, name.find_first_of("_."));
    const bool is_other = kind == "refused" || kind == "empty" || kind == "other" || kind == "seed";
    if (name.ends_with(suffix) && !is_other) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Small files of a few rows, under a kilobyte, whose names end with `suffix`.
inline std::vector<fs::path> seed_tables(const std::string& suffix) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(golden("tables/seeds")))
    if (entry.path().filename().string().ends_with(suffix)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

// Calls read(damaged) with the bytes truncated at every `step`-th byte, and with a bit flipped in every `step`-th byte;
// a step of 1 flips every bit.
template <class Read>
void for_damaged(const std::string& whole, size_t step, const Read& read) {
  for (size_t at = 0; at < whole.size(); at += step) {
    read(whole.substr(0, at));
    for (int bit = 0; bit < 8; ++bit) {
      if (step > 1 && bit != static_cast<int>(at % 8)) continue;
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      read(flipped);
    }
  }
}

// The rows of a golden file of JSON Lines.
inline Json rows_in(const std::string& name) {
  Json rows = Json::array();
  std::istringstream lines(read_file(golden_table(name)));
  for (std::string line; std::getline(lines, line);) rows.push_back(parse_json(line, name));
  return rows;
}

// A line of expected.jsonl: {"text", "pages", "row"}.
inline std::vector<Json> expected_rows() {
  return rows_in("expected.jsonl").get<std::vector<Json>>();
}

// Columns of the golden table: some that can be written as JSON, and some that cannot.
inline TableColumns all_columns() {
  return {.text = "",
          .json = {"id", "text", "meta", "messages", "deep", "i32", "i64", "u8", "u32", "u64", "f32", "f64", "flag",
                   "day", "price", "seen"}};
}

// The texts that a reader gives for the column, with null for unusable ones.
inline Json texts_of(TableReader& reader) {
  Json texts = Json::array();
  for (TableCell cell; reader.next(cell);) {
    if (!cell.reason.empty()) {
      EXPECT_EQ(cell.reason, "the text is null");
    }
    texts.push_back(cell.reason.empty() ? Json(std::string(cell.text)) : Json());
    EXPECT_EQ(cell.row, static_cast<int64_t>(texts.size()));
  }
  return texts;
}

// The texts of each row for a column of lists.
inline Json lists_of(TableReader& reader) {
  Json rows = Json::array();
  for (TableCell cell; reader.next(cell);) {
    EXPECT_EQ(cell.reason, "");
    if (cell.row > static_cast<int64_t>(rows.size())) rows.push_back(Json::array());
    EXPECT_EQ(cell.row, static_cast<int64_t>(rows.size()));
    rows.back().push_back(std::string(cell.text));
  }
  return rows;
}

inline Json rows_of(TableReader& reader) {
  Json rows = Json::array();
  for (TableCell cell; reader.next(cell);) {
    EXPECT_EQ(cell.reason, "");
    rows.push_back(parse_json(cell.text, "row"));
    EXPECT_EQ(cell.row, static_cast<int64_t>(rows.size()));
  }
  return rows;
}

// Rows with all columns for which JSON has a type, including nulls, as pyarrow gives them (make_whole.py).
inline Json expected_whole() {
  return rows_in("whole.jsonl");
}

inline Json expected_column(const std::string& key) {
  Json column = Json::array();
  for (const Json& row : expected_rows()) column.push_back(row[key]);
  return column;
}

}  // namespace witan

// Files of tests/golden: values computed by other programs, and lines that they logged.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace witan::testing {

// Named lists of values, one list per line.
class GoldenValues {
 public:
  // `path` is relative to tests/golden. Tabs or spaces separate the name and the values of a line.
  explicit GoldenValues(const std::string& path) {
    std::ifstream file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden" / path);
    EXPECT_TRUE(file) << path;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name, word;
      words >> name;
      while (words >> word) all_[name].push_back(std::stod(word));
    }
  }
  const std::vector<double>& of(const std::string& name) const { return all_.at(name); }
  const std::map<std::string, std::vector<double>>& all() const { return all_; }

 private:
  std::map<std::string, std::vector<double>> all_;
};

}  // namespace witan::testing

namespace witan::test {

using LoggedLine = std::map<std::string, std::string>;  // column -> text; load_balancing_loss is empty in dense runs

// Every logged line of four public Megatron-LM runs on 8 GPUs (tests/golden/megatron/runs.tsv), each field as printed.
inline std::vector<LoggedLine> megatron_runs() {
  std::ifstream file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden/megatron/runs.tsv");
  const auto split = [](const std::string& row) {
    std::vector<std::string> cells;
    std::istringstream text(row);
    for (std::string cell; std::getline(text, cell, '\t');) cells.push_back(cell);
    return cells;
  };
  std::string line;
  std::getline(file, line);
  const auto columns = split(line);
  std::vector<LoggedLine> lines;
  while (std::getline(file, line)) {
    const auto row = split(line);
    for (size_t i = 0; i < columns.size(); ++i) {
      if (i == 0) lines.emplace_back();
      lines.back()[columns[i]] = row.at(i);
    }
  }
  return lines;
}

}  // namespace witan::test

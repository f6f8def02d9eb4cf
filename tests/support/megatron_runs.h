// Every logged line of four public Megatron-LM runs on 8 GPUs (tests/golden/megatron/runs.tsv), field by field as
// printed.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace witan::test {

using LoggedLine = std::map<std::string, std::string>;  // column -> text; load_balancing_loss is empty in dense runs

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

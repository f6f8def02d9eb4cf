// Rows that tests write and read.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/rows/row_job.h"

namespace witan {

inline std::vector<std::string> lines_in(const fs::path& path) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// Rows {"n": first}, {"n": first + 1} ... of uneven lengths.
inline std::string numbered_rows(int first, int count) {
  std::string rows;
  for (int i = first; i < first + count; ++i)
    rows += cat("{\"n\": ", i, ", \"text\": \"", std::string(static_cast<size_t>(i * 7919 % 97), 'x'), "\"}\n");
  return rows;
}

// The number in such a row.
inline int number_in(const std::string& row) {
  return std::stoi(row.substr(row.find(": ") + 2));
}

inline std::vector<int> numbers_in(const fs::path& path) {
  std::vector<int> numbers;
  for (const std::string& line : lines_in(path)) numbers.push_back(number_in(line));
  return numbers;
}

}  // namespace witan

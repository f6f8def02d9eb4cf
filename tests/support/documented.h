// Finds options without a row in a page of the documentation.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"

namespace witan::testing {

// Keys that are not in the first cell of any table row of the page, alone or before " = value".
inline std::vector<std::string> keys_without_row(const std::string& page, const Fields& fields) {
  std::string first_cells;
  std::ifstream file(std::string(WITAN_SOURCE_DIR) + "/docs/" + page);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with('|')) first_cells += line.substr(1, line.find('|', 1) - 1);
  std::vector<std::string> missing;
  for (const Field& field : fields)
    if (first_cells.find("`" + field.name + "`") == std::string::npos &&
        first_cells.find("`" + field.name + " =") == std::string::npos)
      missing.push_back(field.name);
  return missing;
}

}  // namespace witan::testing

#include "witan/cli/runs/table.h"

#include <algorithm>

#include "witan/report/progress/progress.h"

namespace witan::cli {

std::string text_table(const std::vector<std::vector<std::string>>& rows, const std::vector<Align>& aligned) {
  std::vector<int> widths;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(static_cast<size_t>(widths[i] - display_width(row[i])), ' ');
      const bool right = i < aligned.size() && aligned[i] == Align::right;
      line += (i == 0 ? "" : "  ") + (right ? blanks + row[i] : row[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

}  // namespace witan::cli

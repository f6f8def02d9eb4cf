#include "witan/data/tables/table_reader.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

void refuse_column(const std::string& file, const std::string& wanted, const std::vector<std::string>& columns) {
  constexpr size_t kShown = 20;
  std::string shown;
  for (size_t i = 0; i < std::min(columns.size(), kShown); ++i) shown += (i == 0 ? "" : ", ") + clipped(columns[i]);
  if (columns.size() > kShown) shown += cat(" and ", columns.size() - kShown, " more");
  throw DataError(cat(file, ": there is no column ", clipped(wanted), suggestion(wanted, columns), "; it has ",
                      columns.empty() ? "none" : shown, ": name one with --json-key"));
}

}  // namespace witan

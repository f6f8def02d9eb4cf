#include "witan/data/tables/table_reader.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

std::string names_of_columns(const std::vector<std::string>& columns) {
  constexpr size_t kShown = 20;
  std::string shown;
  for (size_t i = 0; i < std::min(columns.size(), kShown); ++i) shown += (i == 0 ? "" : ", ") + clipped(columns[i]);
  if (columns.size() > kShown) shown += cat(" and ", columns.size() - kShown, " more");
  return columns.empty() ? "none" : shown;
}

}  // namespace

void refuse_column(const std::string& file, const TableColumns& wanted, const std::vector<std::string>& columns) {
  const std::string& name = wanted.as_json() ? wanted.json.front() : wanted.text;
  throw DataError(cat(file, ": there is no column ", clipped(name), suggestion(name, columns), "; it has ",
                      names_of_columns(columns), ": name one with ", wanted.option));
}

void refuse_rows(const std::string& file, const std::vector<std::string>& columns) {
  throw DataError(cat(file, ": it has no column that can be written as JSON, but ", names_of_columns(columns),
                      ": convert them to text or numbers first"));
}

}  // namespace witan

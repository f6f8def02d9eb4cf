// Several runs on one page: what differs between them, and their curves over each other. The page is made as the report
// of one run is (report/page/html.h): one offline file.
#pragma once

#include <string>
#include <vector>

#include "witan/report/events/metrics.h"

namespace witan {

struct ComparedRun {
  std::string name;
  Metrics metrics;
};

// A table with a column for each run.
struct ComparisonTable {
  std::string title;
  struct Row {
    std::string what;
    std::vector<std::string> values;  // one of each run
  };
  std::vector<Row> rows;
};

// At most kSeriesColours runs can be told apart by their colours.
std::string render_comparison(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables);

}  // namespace witan

#include "witan/report/page/comparison.h"

#include "witan/report/page/page.h"

namespace witan {

std::string render_comparison(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables) {
  return frozen_page(comparison_parts(runs, tables));
}

}  // namespace witan

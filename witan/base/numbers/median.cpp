#include "witan/base/numbers/median.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace witan {
namespace {

double in_order(std::vector<double> values, ptrdiff_t position) {
  const auto at = values.begin() + position;
  std::ranges::nth_element(values, at);
  return *at;
}

}  // namespace

double median(std::vector<double> values) {
  const ptrdiff_t middle = std::ssize(values) / 2;
  return in_order(std::move(values), middle);
}

double lower_median(std::vector<double> values) {
  const ptrdiff_t middle = (std::ssize(values) - 1) / 2;
  return in_order(std::move(values), middle);
}

}  // namespace witan

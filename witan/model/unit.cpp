#include "witan/model/unit.h"

namespace witan {

std::vector<Parameter*> parameters_of(const std::vector<Unit>& units) {
  std::vector<Parameter*> all;
  for (const Unit& unit : units) all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

}  // namespace witan

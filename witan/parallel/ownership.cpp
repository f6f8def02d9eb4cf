#include "witan/parallel/ownership.h"

namespace witan {

std::vector<Owned> own_all(const std::vector<Parameter*>& parameters) {
  std::vector<Owned> owned;
  for (Parameter* parameter : parameters) owned.push_back({parameter, 0, parameter->value().size(0)});
  return owned;
}

}  // namespace witan

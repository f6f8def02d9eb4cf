// Tests whose proof is many steps or many layouts have two forms. The short one, of fewer, runs with every other test;
// the long one where WITAN_LONG_TESTS is set, as `make test-long` does.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace witan::testing {

inline bool long_form() {
  return std::getenv("WITAN_LONG_TESTS") != nullptr;
}

inline int64_t steps_of(int64_t short_form, int64_t of_long_form) {
  return long_form() ? of_long_form : short_form;
}

}  // namespace witan::testing

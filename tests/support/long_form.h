// Tests that need many steps or many layouts have two forms. The short form runs with all other tests, the long form if
// WITAN_LONG_TESTS is set, as by `make test-long`. A few take hours and require WITAN_LONG_TESTS=hours.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace witan::testing {

inline bool long_form() {
  return std::getenv("WITAN_LONG_TESTS") != nullptr;
}

inline bool form_of_hours() {
  const char* form = std::getenv("WITAN_LONG_TESTS");
  return form != nullptr && std::string_view(form) == "hours";
}

inline int64_t steps_of(int64_t short_form, int64_t of_long_form) {
  return long_form() ? of_long_form : short_form;
}

}  // namespace witan::testing

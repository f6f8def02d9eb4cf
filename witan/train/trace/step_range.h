// Consecutive steps of a run, as --trace-steps names them.
#pragma once

#include <cstdint>
#include <string>

namespace witan {

struct StepRange {
  int64_t first = 1, last = 1;
};
// "3:5", both included, or "3". Throws ConfigError.
StepRange parse_step_range(const std::string& text);

}  // namespace witan

// The sampled answers of a run (docs/formats/rollouts.md) on its page: a few of the newest step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

struct ShownAnswer {
  int64_t step = 0, row = 0;
  std::string what;  // "best", "worst", "newest"
  std::string prompt, completion;
  double reward = 0;
};

// Of the newest step of which there is a whole file: the first answers with the largest and with the smallest reward,
// and two of its last prompts. Empty for a run without rollouts; lines that are no rollouts are left out.
std::vector<ShownAnswer> shown_answers(const fs::path& run_folder);

std::string answer_section(const std::vector<ShownAnswer>& answers);

}  // namespace witan

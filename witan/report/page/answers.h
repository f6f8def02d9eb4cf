// The sampled answers of a run (docs/formats/rollouts.md) on its page: a few of the newest step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

struct ShownAnswer {
  int64_t row = 0;
  std::string what;  // "best", "worst", "newest"
  std::string prompt, completion;
  double reward = 0;
};

// The newest step of which there is a whole file.
struct StepAnswers {
  int64_t step = 0;
  // Its answers; those among them that are not trained on, since all rewards to their prompts are equal; and those that
  // were sampled before them and discarded for the same reason.
  int64_t answers = 0, skipped = 0, discarded = 0;
  // The first answers with the largest and with the smallest reward, and two to the last prompts; discarded ones are
  // left out.
  std::vector<ShownAnswer> shown = {};
};

// Empty for a run without rollouts; lines that are no rollouts are left out.
StepAnswers step_answers(const fs::path& run_folder);

std::string answer_section(const StepAnswers& answers);

}  // namespace witan

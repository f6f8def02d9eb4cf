#include "witan/tensor/trail.h"

#include <array>

#include "witan/base/error.h"

namespace witan {

std::string_view name_of(Trail::Phase phase) {
  static constexpr std::array<std::string_view, Trail::kPhases> kNames = {
      "",          "set-up",  "loading",    "forward", "backward", "gradients",
      "optimizer", "logging", "evaluation", "sample",  "saving"};
  return kNames[static_cast<size_t>(phase)];
}

std::string describe(const Trail& trail) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (trail.step > 0) add(cat("step ", trail.step));
  const std::string micro_batch = trail.micro_batch < 0 ? "" : cat("micro-batch ", trail.micro_batch);
  if (trail.phase != Trail::Phase::none)
    add(cat(name_of(trail.phase), micro_batch.empty() ? "" : " of ", micro_batch));
  else if (!micro_batch.empty())
    add(micro_batch);
  if (!trail.module.empty()) add(std::string(trail.module));
  if (!trail.op.empty()) text += cat(text.empty() ? "" : " ", "(", trail.op, ")");
  return text;
}

std::string in_words(const Trail& trail) {
  const std::string text = describe(trail);
  return text.empty() ? "" : " in " + text;
}

}  // namespace witan

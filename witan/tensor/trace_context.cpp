#include "witan/tensor/trace_context.h"

#include <array>

#include "witan/base/error.h"

namespace witan {

std::string_view name_of(TraceContext::Phase phase) {
  static constexpr std::array<std::string_view, TraceContext::kPhases> kNames = {
      "",          "set-up",  "loading",    "forward", "backward", "gradients",
      "optimizer", "logging", "evaluation", "sample",  "saving"};
  return kNames[static_cast<size_t>(phase)];
}

std::string describe(const TraceContext& trace_context) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (trace_context.step > 0) add(cat("step ", trace_context.step));
  const std::string micro_batch = trace_context.micro_batch < 0 ? "" : cat("micro-batch ", trace_context.micro_batch);
  if (trace_context.phase != TraceContext::Phase::none)
    add(cat(name_of(trace_context.phase), micro_batch.empty() ? "" : " of ", micro_batch));
  else if (!micro_batch.empty())
    add(micro_batch);
  if (!trace_context.module.empty()) add(std::string(trace_context.module));
  if (!trace_context.op.empty()) text += cat(text.empty() ? "" : " ", "(", trace_context.op, ")");
  return text;
}

std::string in_words(const TraceContext& trace_context) {
  const std::string text = describe(trace_context);
  return text.empty() ? "" : " in " + text;
}

}  // namespace witan

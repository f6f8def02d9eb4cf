#include "witan/train/trace/place_ranges.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"

namespace witan {

void PlaceRanges::begins(Stream& stream) {
  TraceContext context = stream.trace_context();
  context.op = {};  // kernels have names of their own
  if (context == at_) return;
  std::vector<std::string> names;
  if (context.step > 0) names.push_back(cat("step ", context.step));
  TraceContext pass = context;
  pass.step = 0;
  pass.module = {};
  names.push_back(describe(pass));
  names.emplace_back(context.module);
  std::erase(names, "");
  go_to(context, std::move(names));
}

// Ranges nest, so that the common prefix of the old and the new names stays open.
void PlaceRanges::go_to(const TraceContext& context, std::vector<std::string> names) {
  const auto same = static_cast<size_t>(std::ranges::mismatch(open_, names).in1 - open_.begin());
  for (size_t i = same; i < open_.size(); ++i) pop_();
  for (size_t i = same; i < names.size(); ++i) push_(names[i]);
  open_ = std::move(names);
  at_ = context;
}

}  // namespace witan

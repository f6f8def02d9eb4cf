#include "witan/train/trace/step_range.h"

#include <charconv>
#include <string_view>

#include "witan/base/error.h"

namespace witan {
namespace {

int64_t number(std::string_view text, const std::string& whole) {
  int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  require<ConfigError>(read.ec == std::errc() && read.ptr == text.data() + text.size() && value >= 1, "--trace-steps ",
                       whole, ": give the first and the last step, as 3:5, or one, as 3");
  return value;
}

}  // namespace

StepRange parse_step_range(const std::string& text) {
  const std::string_view all = text;
  const size_t colon = all.find(':');
  if (colon == std::string_view::npos) return {number(all, text), number(all, text)};
  const StepRange range{number(all.substr(0, colon), text), number(all.substr(colon + 1), text)};
  require<ConfigError>(range.first <= range.last, "--trace-steps ", text, ": the first step comes after the last; ",
                       "give ", range.last, ":", range.first);
  return range;
}

}  // namespace witan

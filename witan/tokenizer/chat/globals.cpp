#include <algorithm>
#include <ctime>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/builtins.h"

namespace witan::jinja {

Value make_range(const Arguments& arguments, Work& work) {
  const Items& given = arguments.values;
  require<DataError>(arguments.named.empty() && !given.empty() && given.size() <= 3,
                     "range takes one to three integers");
  const int64_t first = given.size() > 1 ? integer_of(given[0], "range's start") : 0;
  const int64_t end = integer_of(given[given.size() > 1 ? 1 : 0], "range's end");
  const int64_t step = given.size() > 2 ? integer_of(given[2], "range's step") : 1;
  require<DataError>(step != 0, "range's step is 0");
  constexpr int64_t kMost = 100000;  // as Jinja's sandbox
  Items items;
  for (int64_t at = first; step > 0 ? at < end : at > end;) {
    require<DataError>(items.size() < kMost, "range has more than ", kMost, " items");
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  work.take(items.size());
  return Value::view(std::move(items), cat("range(", first, ", ", end, step == 1 ? "" : cat(", ", step), ")"));
}

Entries make_entries(const Arguments& arguments, Work& work) {
  Entries entries;
  require<DataError>(arguments.values.size() <= 1, "namespace and dict take names and at most one dict");
  if (!arguments.values.empty()) {
    require<DataError>(arguments.values[0].entries() != nullptr, "namespace and dict take a dict, not ",
                       type_name(arguments.values[0]));
    entries = *arguments.values[0].entries();
  }
  for (const auto& [name, value] : arguments.named) {
    work.take(1 + entries.size() / 8);
    set_entry(entries, Value::text(name), value);
  }
  return entries;
}

std::string formatted_time(const std::string& format, std::optional<int64_t> now) {
  constexpr size_t kMostFormat = 256;
  require<DataError>(format.size() <= kMostFormat, "strftime_now: the format is longer than ", kMostFormat);
  if (format.empty()) return {};
  const std::time_t at = now ? static_cast<std::time_t>(*now) : std::time(nullptr);
  std::tm parts{};
  require<DataError>((now ? gmtime_r(&at, &parts) : localtime_r(&at, &parts)) != nullptr, "strftime_now: no such time");
  char text[64 * kMostFormat];
  return std::string(text, std::strftime(text, sizeof text, format.c_str(), &parts));
}

}  // namespace witan::jinja

// The functions that every template can call: what they make of their arguments. Each throws DataError for arguments
// that it does not take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

// range(end), range(start, end) and range(start, end, step).
Value make_range(const Arguments& arguments, Work& work);
// The entries of dict(…) and namespace(…): those of a dict, and names.
Entries make_entries(const Arguments& arguments, Work& work);
// strftime_now(format). `now` as in ChatTemplateOptions.
std::string formatted_time(const std::string& format, std::optional<int64_t> now);

}  // namespace witan::jinja

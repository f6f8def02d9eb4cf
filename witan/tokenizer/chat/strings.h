// What Python's strings do, on UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/chat/marked_text.h"

namespace witan::jinja {

enum class Ends { both, left, right };

// Without white space (Unicode's), or without the characters of `among`, at its ends.
std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> among = {});
// At white space, or at a separator that is not empty; at most `most` cuts, unless it is negative.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t most,
                                    bool from_right);
std::vector<std::string_view> split_lines(std::string_view text);
// At most `most` times, unless it is negative.
MarkedText replace_all(const MarkedText& text, std::string_view old, const MarkedText& with, int64_t most);
int64_t count_of(std::string_view text, std::string_view part);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
// Every word begins with a capital: in Python's sense of a word, and in that of Jinja's filter.
std::string title(std::string_view text);
std::string filter_title(std::string_view text);
// How repr() writes one character between such quotes; empty: as it is.
std::string repr_escape(std::string_view one, char quote);

}  // namespace witan::jinja

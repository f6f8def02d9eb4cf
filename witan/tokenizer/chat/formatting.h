// Python's two ways to format text: "%s" % values and "{}".format(values). What is beyond the supported part (docs in
// https://docs.python.org/3/library/string.html#formatspec) is refused by name.
#pragma once

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

// format % values. Throw DataError for formats and values that do not fit each other.
Value percent_format(const MarkedText& format, const Value& values, Work& work);
// format.format(arguments).
Value brace_format(const MarkedText& format, const Arguments& arguments, Work& work);

}  // namespace witan::jinja

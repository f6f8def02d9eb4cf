// A row is good, and its text is UTF-8, or there is a reason why not.
#include "fuzz/support.h"
#include "witan/base/text.h"
#include "witan/data/text/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static JsonlParser parser("text");  // as it is used: one for all rows
  const JsonlRow row = parser.parse(fuzz::text_of(data, size));
  if (row.good()) assert(find_invalid_utf8(row.text) == std::string_view::npos && row.text.size() <= size);
  return 0;
}

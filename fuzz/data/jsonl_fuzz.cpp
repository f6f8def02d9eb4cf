// A row is either accepted, with UTF-8 text, or refused with a reason.
#include "fuzz/support.h"
#include "witan/base/text.h"
#include "witan/data/text/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static JsonlParser parser("text");  // one parser for all rows, as in use
  const JsonlRow row = parser.parse(fuzz::text_of(data, size));
  if (row.good()) assert(find_invalid_utf8(row.text) == std::string_view::npos && row.text.size() <= size);
  return 0;
}

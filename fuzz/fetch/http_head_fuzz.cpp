// The header lines of a response: retry delay, next page, and redirect target.
#include "fuzz/support.h"
#include "witan/fetch/hub.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::fetch;
  HttpResult result;
  result.status = 429;
  std::string_view head = fuzz::text_of(data, size);
  for (size_t end; (end = head.find('\n')) != head.npos; head.remove_prefix(end + 1))
    result.take_header(head.substr(0, end + 1));
  const auto seconds = retry_after_seconds(result);
  assert(!seconds || (*seconds >= 0 && *seconds <= 3600));
  for (const std::string& location : {result.header("location"), next_page(result)})
    for (const std::string from : {"https://hub.example/a/b?c", "http://127.0.0.1:8080/a"}) {
      const std::string target = redirect_target(from, location);
      assert(target.empty() || origin_of(target).starts_with(from.starts_with("https:") ? "https://" : "http"));
    }
  return 0;
}

// A conversation is read, and each message has a role and a text, or it is refused as 400 with a reason.
#include "fuzz/support.h"
#include "witan/serve/api_error.h"
#include "witan/serve/request.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::serve;
  try {
    const ChatRequest request = parse_chat_request(fuzz::text_of(data, size));
    assert(request.messages.is_array() && !request.messages.empty());
    for (const auto& message : request.messages)
      assert(message.at("role").is_string() && message.at("content").is_string());
  } catch (const ApiError& error) {
    assert(error.status() == 400 && error.what()[0] != '\0' && error.body().starts_with("{\"error\""));
  }
  return 0;
}

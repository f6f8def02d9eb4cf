// A conversation is either accepted, with a role and a text in each message, or refused as 400 with a reason.
#include "fuzz/support.h"
#include "witan/serve/request.h"
#include "witan/serve/request_members.h"
#include "witan/tokenizer/chat/value.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::serve;
  try {
    const ChatRequest request = parse_chat_request(fuzz::text_of(data, size));
    assert(!request.messages.empty());
    for (const ChatMessage& message : request.messages) {
      const jinja::Value json = jinja::from_json(message.json, "a message");
      for (const char* member : {"role", "content"}) {
        const jinja::Value* text = jinja::find(*json.entries(), member);
        assert(text && text->string());
      }
    }
  } catch (const ApiError& error) {
    assert(error.status() == 400 && error.what()[0] != '\0' && error.body().starts_with("{\"error\""));
  }
  return 0;
}

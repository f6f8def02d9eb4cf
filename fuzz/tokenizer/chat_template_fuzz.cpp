// An accepted template renders a conversation or fails with a message; it terminates, and generation blocks and the
// text of messages lie within the result.
#include <vector>

#include "fuzz/support.h"
#include "witan/tokenizer/chat/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  fuzz::expect_own_errors([&] {
    const ChatTemplate chat(std::string(fuzz::text_of(data, size)), "chat_template.jinja");
    const std::vector<ChatMessage> messages = {{"system", " Be brief.\n"},
                                               {"user", "Wie groß? 2 < 3"},
                                               {{}, {}, R"({"role": "assistant", "tool_calls": [{"id": 1}]})"}};
    const RenderedChat rendered = chat.render_chat(messages, {.add_generation_prompt = true,
                                                              .bos_token = "<s>",
                                                              .eos_token = "</s>",
                                                              .tools = R"([{"a": [1.5]}])",
                                                              .now = 0});
    for (const TextSpan& span : rendered.generated) assert(span.begin <= span.end && span.end <= rendered.text.size());
    size_t at = 0;
    for (const TextSpan& span : rendered.given) {
      assert(span.begin >= at && span.begin < span.end && span.end <= rendered.text.size());
      at = span.end;
    }
  });
  return 0;
}

// A request is either accepted with valid values, or refused as 400 with a reason.
#include "fuzz/support.h"
#include "witan/serve/request.h"
#include "witan/serve/request_members.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::serve;
  try {
    const CompletionRequest request = parse_completion_request(fuzz::text_of(data, size));
    assert(!request.prompts.empty() && request.n >= 1 && request.n <= kMostChoices);
    assert(request.top_logprobs >= -1 && request.top_logprobs <= kMostTopLogprobs);
    for (const auto& prompt : request.prompts)
      if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) {
        assert(!tokens->empty());
        for (const int32_t token : *tokens) assert(token >= 0);
      }
    for (const std::string& stop : request.stop) assert(!stop.empty());
  } catch (const ApiError& error) {
    assert(error.status() == 400 && error.what()[0] != '\0' && error.body().starts_with("{\"error\""));
  }
  return 0;
}

#include "witan/data/text_encoder.h"

#include "witan/tokenizer/tokenizer.h"
#include "witan/tokenizer/vocabulary_match.h"

namespace witan {

TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer) {
  const auto end_of_text = tokenizer->end_of_text();
  return {[tokenizer](std::string_view text, std::vector<int32_t>& out) { tokenizer->encode_to(text, out); },
          [tokenizer, end_of_text](int32_t token) {
            return token == end_of_text ? int64_t{0} : static_cast<int64_t>(tokenizer->token_bytes(token).size());
          },
          tokenizer->vocab_size(),
          end_of_text,
          tokenizer->hash(),
          [tokenizer](std::string_view text, std::vector<int32_t>& out) { tokenizer->encode_to(text, out, true); },
          [tokenizer](std::string_view text, std::span<const TextSpan> literal, std::vector<int32_t>& out) {
            tokenizer->encode_to(text, out, literal);
          },
          vocabulary_digest(tokenizer->spec())};
}

}  // namespace witan

#include "witan/data/prepare/text_encoder.h"

#include "witan/base/error.h"
#include "witan/tokenizer/models/vocabulary_match.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

std::string hash_of_whole_texts(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  std::string hash = tokenizer.hash();
  if (spec.before.empty() && spec.after.empty()) return hash;
  for (const int32_t id : spec.before) hash += cat(" ", id);
  hash += " text";
  for (const int32_t id : spec.after) hash += cat(" ", id);
  return hash;
}

TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer) {
  const auto end_of_text = tokenizer->end_of_text();
  return {[tokenizer, end_of_text](std::string_view text, std::vector<int32_t>& out) {
            const std::vector<int32_t> tokens = tokenizer->encode_whole(text);
            const std::vector<int32_t>& after = tokenizer->spec().after;
            const bool ends = end_of_text && !after.empty() && after.back() == *end_of_text;
            out.insert(out.end(), tokens.begin(), tokens.end() - ends);
          },
          [tokenizer](int32_t token) { return tokenizer->text_bytes(token); },
          tokenizer->vocab_size(),
          end_of_text,
          hash_of_whole_texts(*tokenizer),
          [tokenizer](std::string_view text, std::span<const TextSpan> literal, std::vector<int32_t>& out) {
            tokenizer->encode_to(text, out, literal);
          },
          vocabulary_digest(tokenizer->spec())};
}

}  // namespace witan

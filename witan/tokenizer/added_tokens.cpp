#include "witan/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace witan {

void AddedTokenMatcher::add(std::string text, int32_t id, bool special) {
  (special ? any_special_ : any_ordinary_) = true;
  auto& tokens = by_first_byte_[static_cast<uint8_t>(text[0])];
  const auto shorter =
      std::find_if(tokens.begin(), tokens.end(), [&](const Token& token) { return token.text.size() < text.size(); });
  tokens.insert(shorter, {std::move(text), id, special});
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t from,
                                                                bool allow_special) const {
  if (!any_ordinary_ && !(any_special_ && allow_special)) return std::nullopt;
  for (size_t i = from; i < text.size(); ++i)
    for (const Token& token : by_first_byte_[static_cast<uint8_t>(text[i])])
      if ((allow_special || !token.special) && text.substr(i, token.text.size()) == token.text)
        return Match{i, token.text.size(), token.id};
  return std::nullopt;
}

}  // namespace witan

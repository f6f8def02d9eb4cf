#include "witan/tokenizer/models/word_model.h"

#include <string>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {

WordModel::WordModel(const TokenizerSpec& spec) : spec_(&spec), known_(spec.tokens) {
  std::vector<bool> usable(spec.tokens.size(), true);
  for (const AddedToken& token : spec.added)
    if (token.special || !token.in_model) usable[static_cast<size_t>(token.id)] = false;
  for (size_t id = 0; id < usable.size(); ++id)
    if (usable[id] && !spec.tokens[id].empty()) known_.insert(static_cast<int32_t>(id));
}

void WordModel::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (spec_->model == TokenizerSpec::Model::word_piece) {
    if (put_pieces(word, out)) return;
  } else if (const int32_t id = known_.find(word); id >= 0) {
    out.push_back(id);
    return;
  }
  require<DataError>(spec_->unk.has_value(), "the word \"", clipped(word),
                     "\" has no token, and the vocabulary lacks the unknown token (model.unk_token) for it: use a "
                     "tokenizer with one, or remove the word from the text");
  out.push_back(*spec_->unk);
}

bool WordModel::put_pieces(std::string_view word, std::vector<int32_t>& out) const {
  int64_t characters = 0;
  for (size_t at = 0; at < word.size(); at += character_length(word.substr(at)))
    if (++characters > spec_->longest_word) return false;
  const size_t before = out.size();
  std::string piece;
  for (size_t begin = 0; begin < word.size();) {
    piece.assign(begin > 0 ? spec_->word_prefix : std::string());
    const size_t prefix = piece.size();
    piece += word.substr(begin);
    int32_t id = known_.find(piece);
    while (id < 0 && piece.size() > prefix) {
      do piece.pop_back();
      while (piece.size() > prefix && (static_cast<unsigned char>(word[begin + piece.size() - prefix]) & 0xC0) == 0x80);
      if (piece.size() > prefix) id = known_.find(piece);
    }
    if (id < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(id);
    begin += piece.size() - prefix;
  }
  return true;
}

}  // namespace witan

#include "witan/tokenizer/models/unigram_model.h"

#include <algorithm>
#include <limits>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/characters.h"

namespace witan {
namespace {

constexpr double kPenaltyOfUnknown = 10;  // an unknown character is so much worse than the worst token

std::vector<bool> text_tokens(const TokenizerSpec& spec) {
  std::vector<bool> usable(spec.tokens.size());
  for (size_t id = 0; id < usable.size(); ++id) usable[id] = id < spec.scores.size() && !spec.tokens[id].empty();
  for (const AddedToken& token : spec.added)
    if (token.special) usable[static_cast<size_t>(token.id)] = false;
  return usable;
}

double unknown_score(const TokenizerSpec& spec) {
  double least = 0;
  if (!spec.scores.empty()) least = *std::min_element(spec.scores.begin(), spec.scores.end());
  return least - kPenaltyOfUnknown;
}

}  // namespace

UnigramModel::UnigramModel(const TokenizerSpec& spec)
    : spec_(&spec),
      unigram_(spec.tokens, spec.scores, text_tokens(spec), unknown_score(spec), ScoreType::f64),
      known_(spec.tokens) {
  const std::vector<bool> usable = text_tokens(spec);
  for (size_t id = 0; id < usable.size(); ++id)
    if (usable[id]) known_.insert(static_cast<int32_t>(id));
  for (int byte = 0; spec.byte_fallback && byte < 256; ++byte) {
    const int32_t id = known_.find(byte_token_text(static_cast<uint8_t>(byte)));
    byte_ids_.push_back(id);
  }
}

// Neighbouring characters without a token become one token.
void UnigramModel::encode(std::string_view word, std::vector<int32_t>& out) const {
  std::vector<Unigram::Piece> pieces;
  unigram_.segment(word, pieces);
  std::string_view unknown;
  const auto flush = [&] {
    if (!unknown.empty()) put_unknown(unknown, out);
    unknown = {};
  };
  for (const Unigram::Piece& piece : pieces) {
    if (piece.id < 0 || piece.id == spec_->unk) {
      unknown = unknown.empty() ? piece.text : std::string_view(unknown.data(), unknown.size() + piece.text.size());
      continue;
    }
    flush();
    out.push_back(piece.id);
  }
  flush();
}

void UnigramModel::put_unknown(std::string_view text, std::vector<int32_t>& out) const {
  require<DataError>(spec_->unk.has_value(), "the character(s) \"", clipped(text),
                     "\" have no token, and the tokenizer has no unknown token (model.unk_id) for them: use a "
                     "tokenizer with one, or remove them from the text");
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (const int32_t id = known_.find(text); id >= 0)  // together they may be one
    out.push_back(id);
  else if (!byte_ids_.empty() && std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; }))
    for (const char byte : text) out.push_back(id_of(byte));
  else
    out.push_back(*spec_->unk);
}

}  // namespace witan

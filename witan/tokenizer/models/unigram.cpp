#include "witan/tokenizer/models/unigram.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

constexpr float kGreatestSum = 100'000;  // SentencePiece's kScoreResetThreshold

constexpr double kPenaltyOfUnknown = 10;  // how much lower an unknown character scores than the worst token

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

Unigram::Unigram(const std::vector<std::string>& tokens, const std::vector<double>& scores,
                 const std::vector<bool>& usable, double unknown_score, ScoreType type)
    : scores_(scores), unknown_score_(unknown_score), type_(type) {
  for (size_t id = 0; id < tokens.size(); ++id)
    if (usable[id] && !tokens[id].empty()) trie_.add(tokens[id], static_cast<int32_t>(id));
}

void Unigram::segment(std::string_view text, std::vector<Piece>& out) const {
  if (type_ == ScoreType::f32)
    segment_as<float>(text, out);
  else
    segment_as<double>(text, out);
}

template <class Score>
void Unigram::segment_as(std::string_view text, std::vector<Piece>& out) const {
  struct Best {  // the best segmentation that ends here
    Score score = 0;
    int32_t id = -1;
    int64_t begin = -1;  // of its last piece; -1: there is none
  };
  std::vector<Best> best(text.size() + 1);
  size_t reached = 0;  // the furthest end of a piece so far
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    Best& target = best[end];
    reached = std::max(reached, end);
    const Score total = static_cast<Score>(score) + best[begin].score;
    if (target.begin < 0 || total > target.score) target = {total, id, static_cast<int64_t>(begin)};
  };
  for (size_t begin = 0; begin < text.size();) {
    if (const Score sum = best[begin].score; std::is_same_v<Score, float> && std::abs(sum) > kGreatestSum)
      for (size_t end = begin; end <= reached; ++end)
        if (best[end].begin >= 0) best[end].score -= sum;
    const size_t length = character_length(text.substr(begin));
    bool single = false;  // whether the character alone is a token
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text.size();) {
      node = trie_.child(node, static_cast<unsigned char>(text[end++]));
      if (node == ByteTrie::kRoot) break;
      const int32_t id = trie_.id(node);
      if (id < 0) continue;
      offer(begin, end, scores_[static_cast<size_t>(id)], id);
      single = single || end - begin == length;
    }
    if (!single) offer(begin, begin + length, unknown_score_, -1);
    begin += length;
  }
  const size_t first = out.size();
  for (size_t end = text.size(); end > 0;) {
    const auto begin = static_cast<size_t>(best[end].begin);
    out.push_back({best[end].id, text.substr(begin, end - begin)});
    end = begin;
  }
  std::reverse(out.begin() + static_cast<ptrdiff_t>(first), out.end());
}

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

// Adjacent characters without a token become one token.
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
  if (const int32_t id = known_.find(text); id >= 0)  // together they may be a token
    out.push_back(id);
  else if (!byte_ids_.empty() && std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; }))
    for (const char byte : text) out.push_back(id_of(byte));
  else
    out.push_back(*spec_->unk);
}

}  // namespace witan

#include "witan/tokenizer/unigram.h"

#include <algorithm>

#include "witan/tokenizer/characters.h"

namespace witan {

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
  struct Best {  // of the segmentations that end here
    Score score = 0;
    int32_t id = -1;
    int64_t begin = -1;  // of the last piece; -1: none ends here
  };
  std::vector<Best> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t end, Score score, int32_t id) {
    Best& target = best[end];
    const Score total = score + best[begin].score;
    if (target.begin < 0 || total > target.score) target = {total, id, static_cast<int64_t>(begin)};
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t length = character_length(text.substr(begin));
    bool single = false;  // whether the character alone is a token
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text.size();) {
      node = trie_.child(node, static_cast<unsigned char>(text[end++]));
      if (node == ByteTrie::kRoot) break;
      const int32_t id = trie_.id(node);
      if (id < 0) continue;
      offer(begin, end, static_cast<Score>(scores_[static_cast<size_t>(id)]), id);
      single = single || end - begin == length;
    }
    if (!single) offer(begin, begin + length, static_cast<Score>(unknown_score_), -1);
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

}  // namespace witan

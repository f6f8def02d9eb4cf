#include "witan/tokenizer/models/unigram.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "witan/tokenizer/text/characters.h"

namespace witan {
namespace {

constexpr float kGreatestSum = 100'000;  // SentencePiece's kScoreResetThreshold

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
  struct Best {  // of the segmentations that end here
    Score score = 0;
    int32_t id = -1;
    int64_t begin = -1;  // of the last piece; -1: none ends here
  };
  std::vector<Best> best(text.size() + 1);
  size_t reached = 0;  // the last end of a piece so far
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

}  // namespace witan

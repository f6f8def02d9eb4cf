#include "witan/tokenizer/models/sentencepiece.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/tokenizer/models/merge_table.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

constexpr std::string_view kSpaceSymbol = "\u2581";
constexpr std::string_view kReplacement = "\uFFFD";
constexpr float kUnknownPenalty = 10;  // how much lower an unknown character scores than the worst piece

using Piece = SentencePieceModel::Piece;
using Type = SentencePieceModel::Type;

// Pieces that plain text can be encoded to.
bool is_text(const Piece& piece) {
  return piece.type == Type::normal || piece.type == Type::user_defined;
}

// The rank of each piece by score; equal scores have equal ranks.
std::vector<uint32_t> ranks_by_score(const std::vector<Piece>& pieces) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return pieces[a].score > pieces[b].score; });
  std::vector<uint32_t> ranks(pieces.size());
  for (size_t i = 1; i < order.size(); ++i)
    ranks[order[i]] = ranks[order[i - 1]] + (pieces[order[i]].score < pieces[order[i - 1]].score);
  return ranks;
}

}  // namespace

SentencePiece::SentencePiece(SentencePieceModel model) : model_(std::move(model)) {
  if (!model_.charsmap.empty()) charsmap_.emplace(model_.charsmap);
  prepare_pieces();
  if (model_.algorithm == SentencePieceModel::Algorithm::bpe)
    prepare_bpe();
  else
    prepare_unigram();
}

void SentencePiece::prepare_pieces() {
  byte_ids_.assign(256, model_.unk);
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const Piece& piece = model_.pieces[id];
    if (const auto byte = piece.type == Type::byte ? byte_of_token(piece.text) : std::nullopt)
      byte_ids_[*byte] = static_cast<int32_t>(id);
    most_bytes_ = std::max(most_bytes_, piece.text.size());
    if (piece.type != Type::user_defined) continue;
    if (!user_defined_) user_defined_.emplace();
    user_defined_->add(piece.text, static_cast<int32_t>(id));
  }
  if (!model_.byte_fallback) most_bytes_ = 0;  // any number of unknown characters become one token
}

// Symbols are pieces, and characters that occur only inside of pieces: their ids follow those of the pieces, so that
// they can merge; if they do not, they become unknown.
void SentencePiece::prepare_bpe() {
  merging_.byte_level = false;
  merging_.ignore_merges = true;  // only merge() is used, never whole words
  std::vector<int32_t> ids;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const bool merges = model_.pieces[id].type == Type::normal;
    merging_.tokens.push_back(is_text(model_.pieces[id]) ? model_.pieces[id].text : std::string());
    if (merges) ids.push_back(static_cast<int32_t>(id));
  }
  std::vector<std::string> characters;
  for (const int32_t id : ids) {
    const std::string_view text = model_.pieces[static_cast<size_t>(id)].text;
    for (size_t at = 0; at < text.size(); at += character_length(text.substr(at)))
      characters.emplace_back(text.substr(at, character_length(text.substr(at))));
    if (characters.size() < (size_t{1} << 20)) continue;
    std::sort(characters.begin(), characters.end());
    characters.erase(std::unique(characters.begin(), characters.end()), characters.end());
  }
  std::sort(characters.begin(), characters.end());
  characters.erase(std::unique(characters.begin(), characters.end()), characters.end());
  merging_.tokens.insert(merging_.tokens.end(), characters.begin(), characters.end());

  symbols_ = std::make_unique<TokenMap>(merging_.tokens);
  for (size_t id = 0; id < merging_.tokens.size(); ++id)
    if (!merging_.tokens[id].empty())
      symbols_->insert(static_cast<int32_t>(id));  // a character that is also a piece stays the piece
  add_merges(merging_, ids, *symbols_, ranks_by_score(model_.pieces), true);
  bpe_ = std::make_unique<Bpe>(merging_);
}

void SentencePiece::prepare_unigram() {
  const size_t n = model_.pieces.size();
  std::vector<std::string> tokens(n);
  std::vector<double> scores(n);
  std::vector<bool> usable(n);
  float least = std::numeric_limits<float>::max();
  for (const Piece& piece : model_.pieces) {
    if (piece.type != Type::normal) continue;
    least = std::min(least, piece.score);
  }
  for (size_t id = 0; id < n; ++id) {
    const Piece& piece = model_.pieces[id];
    tokens[id] = piece.text;
    usable[id] = is_text(piece);
    // A user-defined piece beats any other segmentation of its bytes.
    scores[id] = piece.type == Type::user_defined ? 0.1 * (static_cast<double>(piece.text.size()) - 1)
                                                  : static_cast<double>(piece.score);
  }
  unigram_ = std::make_unique<Unigram>(tokens, scores, usable, least - kUnknownPenalty, ScoreType::f32);
}

// The first part of the text that is replaced as a unit, and its replacement.
SentencePiece::Replaced SentencePiece::next_of(std::string_view text) const {
  if (const size_t length = user_defined_length(text); length > 0) return {text.substr(0, length), length};
  if (charsmap_)
    if (const auto rule = charsmap_->longest(text)) return {rule->replacement, rule->length};
  const size_t length = character_length(text);
  if (length == 1 && (text[0] & 0x80)) return {kReplacement, 1};
  return {text.substr(0, length), length};
}

std::string SentencePiece::normalize(std::string_view text) const {
  const bool trims = model_.remove_extra_whitespaces;
  const std::string_view space = model_.escape_whitespaces ? kSpaceSymbol : std::string_view(" ");
  while (trims && !text.empty()) {
    const Replaced next = next_of(text);
    if (next.text != " ") break;
    text.remove_prefix(next.length);
  }
  if (text.empty()) return {};
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  if (!model_.whitespace_as_suffix && model_.add_dummy_prefix) out += space;
  bool after_space = trims;
  while (!text.empty()) {
    Replaced next = next_of(text);
    text.remove_prefix(next.length);
    while (after_space && next.text.starts_with(' ')) next.text.remove_prefix(1);
    if (!next.text.empty()) {
      for (const char c : next.text) {
        if (c == ' ')
          out += space;
        else
          out += c;
      }
      after_space = next.text.ends_with(' ');
    }
    if (!trims) after_space = false;
  }
  while (trims && out.ends_with(space)) out.erase(out.size() - space.size());
  if (model_.whitespace_as_suffix && model_.add_dummy_prefix) out += space;
  return out;
}

void SentencePiece::encode(std::string_view text, std::vector<int32_t>& out, size_t most) const {
  const std::string normalized = normalize(text);
  const std::string_view prefix = prefix_beyond(normalized, most);
  if (bpe_)
    encode_bpe(prefix, out, most);
  else
    encode_unigram(prefix, out);
}

std::string_view SentencePiece::prefix_beyond(std::string_view text, size_t most) const {
  if (most_bytes_ == 0 || text.size() / most_bytes_ <= most) return text;
  size_t end = (most + 1) * most_bytes_;
  while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;  // whole characters
  return text.substr(0, end);
}

void SentencePiece::put_unknown(std::string_view text, bool after_unknown, std::vector<int32_t>& out) const {
  if (model_.byte_fallback)
    for (const char byte : text) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  else if (!after_unknown)
    out.push_back(model_.unk);
}

// User-defined pieces never merge, so they divide the text. The text between them is merged word by word if no merge
// crosses the start of a run of spaces.
void SentencePiece::encode_bpe(std::string_view text, std::vector<int32_t>& out, size_t most) const {
  std::vector<int32_t> symbols, merged;
  bool unknown = false;
  size_t begin = 0, at = 0;
  const auto flush = [&] {
    merged.clear();
    bpe_->merge(symbols, merged);
    symbols.clear();
    for (const int32_t id : merged) {
      const bool known = id >= 0 && static_cast<size_t>(id) < model_.pieces.size();
      const size_t length =
          id >= 0 ? merging_.tokens[static_cast<size_t>(id)].size() : character_length(text.substr(begin));
      if (known)
        out.push_back(id);
      else
        put_unknown(text.substr(begin, length), unknown, out);
      unknown = !known;
      begin += length;
    }
  };
  bool after_space = false;
  while (at < text.size() && out.size() <= most) {
    if (const size_t length = user_defined_length(text.substr(at)); length > 0) {
      flush();
      out.push_back(symbols_->find(text.substr(at, length)));
      unknown = false;
      begin = at += length;
      after_space = false;
      continue;
    }
    const std::string_view character = text.substr(at, character_length(text.substr(at)));
    const bool is_space = character == kSpaceSymbol;
    if (is_space && !after_space && bpe_->runs_of_metaspace_begin_words()) flush();
    after_space = is_space;
    symbols.push_back(symbols_->find(character));
    at += character.size();
  }
  flush();
}

void SentencePiece::encode_unigram(std::string_view text, std::vector<int32_t>& out) const {
  std::vector<Unigram::Piece> pieces;
  unigram_->segment(text, pieces);
  bool unknown = false;
  for (const Unigram::Piece& piece : pieces) {
    if (piece.id >= 0)
      out.push_back(piece.id);
    else
      put_unknown(piece.text, unknown, out);
    unknown = piece.id < 0;
  }
}

std::vector<Merge> SentencePiece::merges() const {
  const auto is_piece = [&](int32_t id) { return static_cast<size_t>(id) < model_.pieces.size(); };
  std::vector<Merge> merges;
  for (const Merge& merge : merging_.merges)
    if (is_piece(merge.left) && is_piece(merge.right)) merges.push_back(merge);
  return merges;
}

TokenizerSpec hugging_face_form(const TokenizerSpec& spec) {
  const SentencePieceModel model = parse_sentencepiece_model(spec.sentencepiece, "the model");
  using Step = NormalizerStep;
  TokenizerSpec out = spec;
  const std::string space(kSpaceSymbol);
  const PrependScheme prepend = model.add_dummy_prefix ? PrependScheme::always : PrependScheme::never;
  if (!model.charsmap.empty()) out.normalizers.push_back({.kind = Step::Kind::precompiled, .content = model.charsmap});
  if (model.remove_extra_whitespaces) {
    out.normalizers.push_back({.kind = Step::Kind::strip});
    out.normalizers.push_back({.kind = Step::Kind::replace, .pattern = " {2,}", .content = " ", .regex = true});
  }
  for (size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Type::user_defined)
      out.added.push_back({.id = static_cast<int32_t>(id), .text = model.pieces[id].text, .special = false});
  std::sort(out.added.begin(), out.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}};
  Json decoders = {replace, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (model.add_dummy_prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  out.decoder = Json{{"type", "Sequence"}, {"decoders", decoders}}.dump();
  if (model.algorithm == SentencePieceModel::Algorithm::bpe) {
    if (model.add_dummy_prefix) out.normalizers.push_back({.kind = Step::Kind::prepend, .content = space});
    out.normalizers.push_back({.kind = Step::Kind::replace, .pattern = " ", .content = space});
    out.merges = SentencePiece(model).merges();
    out.unk_token = Json(model.pieces[static_cast<size_t>(model.unk)].text).dump();
  } else {
    out.patterns = {SplitStep::metaspace(space, prepend, true)};
  }
  return out;
}

TokenizerSpec sentencepiece_spec(std::string bytes, std::string_view source) {
  const SentencePieceModel model = parse_sentencepiece_model(bytes, source);
  TokenizerSpec spec;
  spec.byte_level = false;
  spec.model =
      model.algorithm == SentencePieceModel::Algorithm::bpe ? TokenizerSpec::Model::bpe : TokenizerSpec::Model::unigram;
  spec.byte_fallback = model.byte_fallback;
  spec.unk = model.unk;
  spec.fuse_unk = true;
  using Kind = DecoderStep::Kind;
  spec.decoding = {{.kind = Kind::replace, .pattern = std::string(kSpaceSymbol), .content = " "},
                   {.kind = Kind::byte_fallback},
                   {.kind = Kind::fuse}};
  if (model.add_dummy_prefix && !model.whitespace_as_suffix)
    spec.decoding.push_back({.kind = Kind::strip, .pattern = " ", .start = 1});
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    spec.tokens.push_back(piece.text);
    spec.scores.push_back(piece.score);
    if (piece.type == Type::control || piece.type == Type::unknown)
      spec.added.push_back({static_cast<int32_t>(id), piece.text});
  }
  spec.sentencepiece = std::move(bytes);
  return spec;
}

}  // namespace witan

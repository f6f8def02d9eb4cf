#include "witan/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/tokenizer/added_tokens.h"
#include "witan/tokenizer/bpe.h"
#include "witan/tokenizer/characters.h"
#include "witan/tokenizer/normalizer.h"
#include "witan/tokenizer/pieces.h"
#include "witan/tokenizer/pretokenizer.h"
#include "witan/tokenizer/sentencepiece.h"
#include "witan/tokenizer/token_map.h"
#include "witan/tokenizer/tokenizer_files.h"
#include "witan/tokenizer/tokenizer_json.h"
#include "witan/tokenizer/unigram_model.h"

namespace witan {
namespace {

// Ends of documents by the names that published tokenizers give them, the ends of chat turns last.
constexpr std::array<std::string_view, 8> kEndOfText = {
    "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "[EOS]", "<|eot_id|>", "<|im_end|>"};

TokenMap map_of_tokens(const TokenizerSpec& spec, const std::vector<std::string>& bytes) {
  TokenMap map(bytes);
  for (const AddedToken& token : spec.added) map.insert(token.id);
  for (size_t id = 0; id < spec.tokens.size(); ++id)
    if (!spec.tokens[id].empty()) map.insert(static_cast<int32_t>(id));
  return map;
}

// Cuts `text` at added tokens: `token(id)` for each of them, `plain(piece)` for what stands between.
template <class Plain, class Token>
void cut(std::string_view text, const AddedTokenMatcher& matcher, bool allow_special, std::span<const TextSpan> literal,
         Plain plain, Token token) {
  size_t done = 0;
  while (const auto match = matcher.find(text, done, allow_special, literal)) {
    if (match->begin > done) plain(text.substr(done, match->begin - done));
    token(match->id);
    done = match->begin + match->length;
  }
  if (done < text.size()) plain(text.substr(done));
}

// The spans of a text within its part at `begin`, as that part counts bytes.
std::vector<TextSpan> spans_in(std::span<const TextSpan> spans, size_t begin, size_t size) {
  std::vector<TextSpan> within;
  for (auto at = std::ranges::upper_bound(spans, begin, {}, &TextSpan::end);
       at != spans.end() && at->begin < begin + size; ++at)
    within.push_back({std::max(at->begin, begin) - begin, std::min(at->end, begin + size) - begin});
  return within;
}

void hash_text(Hasher& hasher, std::string_view text) {
  const uint64_t size = text.size();  // lengths keep neighbours apart
  hasher.update(&size, sizeof size);
  hasher.update(text.data(), text.size());
}

// What only other tokenizers than the plainest have: nothing is added to the hash of those, so that shards that were
// made with them stay valid.
void hash_more(Hasher& hasher, const TokenizerSpec& s) {
  const auto hash_numbers = [&](const auto& numbers) {
    hash_text(hasher, {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]});
  };
  for (const AddedToken& token : s.added)
    if (token.single_word || token.lstrip || token.rstrip)
      hash_text(hasher, cat("added ", token.id, token.single_word, token.lstrip, token.rstrip));
  for (size_t i = 0; i < s.patterns.size(); ++i) {
    const SplitStep& step = s.patterns[i];
    if (step != SplitStep(step.pattern))
      hash_text(hasher, cat("split ", i, static_cast<int>(step.kind), static_cast<int>(step.behavior), step.invert,
                            static_cast<int>(step.prepend), step.cut));
  }
  if (s.normalizers != std::vector{NormalizerStep{}})
    for (const NormalizerStep& step : s.normalizers)
      for (const auto& text : {cat("normalizer ", static_cast<int>(step.kind), step.regex, step.left, step.right),
                               step.pattern, step.content})
        hash_text(hasher, text);
  if (!s.merge_ranks.empty()) hash_numbers(s.merge_ranks);
  if (!s.scores.empty()) hash_numbers(s.scores);
  if (!s.byte_level)
    hash_text(hasher, cat("characters ", static_cast<int>(s.model), s.byte_fallback, s.unk.value_or(-1), s.fuse_unk,
                          s.decoding.space, s.decoding.byte_fallback, s.decoding.strip_spaces));
  if (!s.sentencepiece.empty()) hash_text(hasher, s.sentencepiece);
}

// What tokens stand for in a vocabulary of characters: text that is not special, with its spaces and bytes.
std::vector<std::string> bytes_of_tokens(const TokenizerSpec& spec) {
  if (spec.byte_level) return {};
  std::vector<std::string> bytes = spec.tokens;
  std::vector<bool> literal(bytes.size());
  for (const AddedToken& token : spec.added) literal[static_cast<size_t>(token.id)] = true;
  for (size_t id = 0; id < bytes.size(); ++id) {
    if (literal[id]) continue;
    if (const auto byte = spec.decoding.byte_fallback ? byte_of_token(bytes[id]) : std::nullopt)
      bytes[id] = std::string(1, static_cast<char>(*byte));
    else if (!spec.decoding.space.empty())
      bytes[id] = replace_all(bytes[id], spec.decoding.space, " ");
  }
  return bytes;
}

using Model = std::variant<Bpe, UnigramModel, SentencePiece>;

Model model_of(const TokenizerSpec& spec) {
  if (!spec.sentencepiece.empty())
    return Model(std::in_place_type<SentencePiece>, parse_sentencepiece_model(spec.sentencepiece, "the model"));
  if (spec.model == TokenizerSpec::Model::unigram) return Model(std::in_place_type<UnigramModel>, spec);
  return Model(std::in_place_type<Bpe>, spec);
}

}  // namespace

// Members refer to `spec`, so Tables never move.
struct Tokenizer::Tables {
  TokenizerSpec spec;
  Normalizer normalizer;
  Pretokenizer pretokenizer;
  Model model;
  std::vector<std::string> bytes;  // of the tokens of a vocabulary of characters
  TokenMap tokens;
  AddedTokenMatcher raw_matcher, normalized_matcher;  // before and after normalisation

  explicit Tables(TokenizerSpec given)
      : spec(std::move(given)),
        normalizer(spec.normalizers),
        pretokenizer(spec.patterns),
        model(model_of(spec)),
        bytes(bytes_of_tokens(spec)),
        tokens(map_of_tokens(spec, bytes_of())) {
    for (const AddedToken& token : spec.added) {
      if (token.normalized)
        normalized_matcher.add(normalizer(token.text), token);
      else
        raw_matcher.add(token.text, token);
    }
  }

  const std::vector<std::string>& bytes_of() const { return spec.byte_level ? spec.tokens : bytes; }

  void encode_words(std::string_view text, const PiecesSink& sink, bool is_first) const {
    if (!spec.prefix_space || text.starts_with(' ')) return pretokenizer.split_pieces(text, sink, is_first);
    pretokenizer.split_pieces(cat(' ', text), sink, is_first);
  }
};

Tokenizer::Tokenizer(TokenizerSpec spec) : tables_(std::make_shared<const Tables>(std::move(spec))) {}

Tokenizer Tokenizer::load(const fs::path& path) {
  TokenizerSpec spec = read_tokenizer(path);
  try {
    return Tokenizer(std::move(spec));
  } catch (const DataError& e) {
    throw DataError(cat(path.string(), ": ", e.what()));
  } catch (const CorruptionError& e) {
    throw CorruptionError(cat(path.string(), ": ", e.what()));
  }
}

void Tokenizer::save(const fs::path& path) const {
  write_file_atomically(path, write_tokenizer_json(spec()));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool allow_special) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  encode_to(text, ids, allow_special);
  return ids;
}

void Tokenizer::encode_to(std::string_view text, std::vector<int32_t>& out, bool allow_special) const {
  encode_to(text, out, allow_special, {});
}

void Tokenizer::encode_to(std::string_view text, std::vector<int32_t>& out, std::span<const TextSpan> literal) const {
  encode_to(text, out, true, literal);
}

void Tokenizer::encode_to(std::string_view text, std::vector<int32_t>& out, bool allow_special,
                          std::span<const TextSpan> literal) const {
  const Tables& t = *tables_;
  const auto token = [&](int32_t id) { out.push_back(id); };
  if (const auto* sentencepiece = std::get_if<SentencePiece>(&t.model))
    return cut(
        text, t.raw_matcher, allow_special, literal, [&](std::string_view piece) { sentencepiece->encode(piece, out); },
        token);
  PiecesSink words;
  if (const auto* bpe = std::get_if<Bpe>(&t.model))
    words = [bpe, &out](const Pieces& pieces) { bpe->encode_words(pieces, out); };
  else
    words = [unigram = &std::get<UnigramModel>(t.model), &out](const Pieces& pieces) {
      pieces.each([&](std::string_view piece) { unigram->encode(piece, out); });
    };
  const auto normalized = [&](std::string_view piece, bool is_first, const std::vector<TextSpan>& spans) {
    cut(
        piece, t.normalized_matcher, allow_special, spans,
        [&](std::string_view rest) { t.encode_words(rest, words, is_first && rest.data() == piece.data()); }, token);
  };
  const auto plain = [&](std::string_view piece) {
    const bool is_first = piece.data() == text.data();
    std::vector<TextSpan> spans;
    if (t.normalized_matcher.has_special())
      spans = spans_in(literal, static_cast<size_t>(piece.data() - text.data()), piece.size());
    if (!t.normalizer.may_change(piece)) return normalized(piece, is_first, spans);
    for (TextSpan& span : spans)  // a normalised beginning ends where the beginning of the normalised text does
      span = {t.normalizer(piece.substr(0, span.begin)).size(), t.normalizer(piece.substr(0, span.end)).size()};
    normalized(t.normalizer(piece), is_first, spans);
  };
  cut(text, t.raw_matcher, allow_special, literal, plain, token);
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += token_bytes(id);
  const auto spaces = static_cast<size_t>(spec().decoding.strip_spaces);
  return text.substr(std::min(std::min(spaces, text.find_first_not_of(' ')), text.size()));
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  require<DataError>(id >= 0 && id < vocab_size(), "the token id ", id, " is outside the vocabulary of ", vocab_size(),
                     " tokens: are these tokens from another tokenizer?");
  if (const auto* sentencepiece = std::get_if<SentencePiece>(&tables_->model))
    if (id == sentencepiece->model().unk) return sentencepiece->model().unk_surface;
  return tables_->bytes_of()[static_cast<size_t>(id)];
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(tables_->spec.tokens.size());
}

std::optional<int32_t> Tokenizer::token_id(std::string_view bytes) const {
  const int32_t id = tables_->tokens.find(bytes);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<int32_t> Tokenizer::end_of_text() const {
  for (const std::string_view name : kEndOfText)
    for (const AddedToken& token : spec().added)
      if (token.text == name) return token.id;
  return std::nullopt;
}

std::string Tokenizer::hash() const {
  const TokenizerSpec& s = spec();
  Hasher hasher;
  for (const std::string& token : s.tokens) hash_text(hasher, token);
  hash_text(hasher, {reinterpret_cast<const char*>(s.merges.data()), s.merges.size() * sizeof(Merge)});
  for (const AddedToken& token : s.added)
    hash_text(hasher, cat(token.id, token.special, token.normalized, token.in_model, token.text));
  for (const SplitStep& step : s.patterns) hash_text(hasher, step.pattern);
  const bool nfc = s.normalizers == std::vector{NormalizerStep{}};
  hash_text(hasher, cat(nfc, s.prefix_space, s.ignore_merges));
  hash_more(hasher, s);
  return hasher.hex();
}

const TokenizerSpec& Tokenizer::spec() const {
  return tables_->spec;
}

}  // namespace witan

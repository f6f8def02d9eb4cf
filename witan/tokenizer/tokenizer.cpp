#include "witan/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <utility>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/models/bpe.h"
#include "witan/tokenizer/models/sentencepiece.h"
#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/models/unigram.h"
#include "witan/tokenizer/models/word_model.h"
#include "witan/tokenizer/text/added_tokens.h"
#include "witan/tokenizer/text/decoder.h"
#include "witan/tokenizer/text/normalizer.h"
#include "witan/tokenizer/text/pretokenizer.h"
#include "witan/tokenizer/text/scanners.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

// The end of a document by its names in published tokenizers; the ends of chat turns come last.
constexpr std::array<std::string_view, 8> kEndOfText = {
    "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "[EOS]", "<|eot_id|>", "<|im_end|>"};

TokenMap map_of_tokens(const TokenizerSpec& spec, const std::vector<std::string>& bytes) {
  TokenMap map(bytes);
  for (size_t id = 0; id < spec.tokens.size(); ++id)
    if (!spec.tokens[id].empty()) map.insert(static_cast<int32_t>(id));
  return map;
}

// Splits `text` at added tokens: calls `token(id)` for each token and `plain(piece)` for the text between them.
template <class Plain, class Token>
void cut(std::string_view text, const AddedTokenMatcher& matcher, bool allow_special, std::span<const TextSpan> literal,
         Plain plain, Token token) {
  size_t done = 0, from = 0;
  while (const auto match = matcher.find(text, from, done, allow_special, literal)) {
    if (match->begin > done) plain(text.substr(done, match->begin - done));
    token(match->id);
    done = match->end;
    from = match->next;
  }
  if (done < text.size()) plain(text.substr(done));
}

// The parts of the spans that lie in [begin, begin + size), relative to `begin`.
std::vector<TextSpan> spans_in(std::span<const TextSpan> spans, size_t begin, size_t size) {
  std::vector<TextSpan> within;
  for (auto at = std::ranges::upper_bound(spans, begin, {}, &TextSpan::end);
       at != spans.end() && at->begin < begin + size; ++at)
    within.push_back({std::max(at->begin, begin) - begin, std::min(at->end, begin + size) - begin});
  return within;
}

void hash_text(Hasher& hasher, std::string_view text) {
  const uint64_t size = text.size();  // separates adjacent texts
  hasher.update(&size, sizeof size);
  hasher.update(text.data(), text.size());
}

// Hashes kept from the time when only SentencePiece's form of decoders was supported, then whatever goes beyond it.
std::string hash_of_decoding(const TokenizerSpec& spec) {
  using Kind = DecoderStep::Kind;
  std::string space, more;
  bool byte_fallback = false;
  int64_t strip_spaces = 0;
  for (const DecoderStep& step : spec.decoding) {
    byte_fallback |= step.kind == Kind::byte_fallback;
    if (step.kind == Kind::metaspace) strip_spaces = step.prepends;
    if (step.kind == Kind::metaspace || step.kind == Kind::replace) space = step.pattern;
    if (step.kind == Kind::strip) strip_spaces = step.start;
    if (step.regex || (step.kind == Kind::replace && step.content != " ") || step.stop > 0 ||
        (step.kind == Kind::strip && step.pattern != " ") || step.kind == Kind::word_piece)
      more = spec.decoder;
  }
  return cat(space, byte_fallback, strip_spaces, more);
}

// Hashes what the simplest tokenizers lack. Their own hashes stay as they were, so that token shards made with them
// stay valid.
void hash_extensions(Hasher& hasher, const TokenizerSpec& s) {
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
      for (const auto& text :
           {cat("normalizer ", static_cast<int>(step.kind), step.regex, step.left, step.right,
                step.kind == NormalizerStep::Kind::bert ? cat(step.clean, step.chinese, step.accents, step.lower) : ""),
            step.pattern, step.content})
        hash_text(hasher, text);
  if (!s.merge_ranks.empty()) hash_numbers(s.merge_ranks);
  if (!s.scores.empty()) hash_numbers(s.scores);
  if (!s.byte_level)
    hash_text(hasher, cat("characters ", static_cast<int>(s.model), s.byte_fallback, s.unk.value_or(-1), s.fuse_unk,
                          hash_of_decoding(s)));
  if (s.model == TokenizerSpec::Model::word_piece)
    hash_text(hasher, cat("pieces ", s.word_prefix, " ", s.longest_word));
  if (!s.sentencepiece.empty()) hash_text(hasher, s.sentencepiece);
}

// The decoded text of each token of a character-level vocabulary, if it is not the first of its text.
std::vector<std::string> bytes_of_tokens(const TokenizerSpec& spec, const Decoder& decoder) {
  if (spec.byte_level) return {};
  std::vector<std::string> bytes(spec.tokens.size());
  for (size_t id = 0; id < bytes.size(); ++id)
    if (!spec.tokens[id].empty() || static_cast<int32_t>(id) == spec.empty_token)
      bytes[id] = decoder.piece(spec.tokens[id], false);
  return bytes;
}

// Canonical composition shortens a text at most to a third (unicode.org/faq/normalization.html); this adds a margin.
constexpr int64_t kMostComposed = 4;

// Whether a character-level vocabulary has no unknown characters, runs of which might become one token.
bool has_all_bytes(const TokenizerSpec& spec) {
  std::bitset<256> found;
  for (const std::string& token : spec.tokens)
    if (const auto byte = byte_of_token(token)) found.set(static_cast<uint8_t>(*byte));
  return spec.byte_fallback && found.all();
}

// The most bytes of text in a token; 0 (unlimited) if text may vanish, or text of any length may become one token.
int64_t most_bytes_of_a_token(const TokenizerSpec& spec) {
  const bool by_words = spec.model != TokenizerSpec::Model::bpe && spec.model != TokenizerSpec::Model::unigram;
  if (by_words || !spec.sentencepiece.empty() || (!spec.byte_level && !has_all_bytes(spec))) return 0;
  int64_t shrinks = 1;
  for (const NormalizerStep& step : spec.normalizers) {
    using Kind = NormalizerStep::Kind;
    if (step.kind == Kind::nfc || step.kind == Kind::nfd)
      shrinks *= kMostComposed;
    else if (step.kind == Kind::replace ? step.regex || step.content.size() < step.pattern.size()
                                        : step.kind != Kind::prepend)
      return 0;
  }
  if (std::ranges::any_of(spec.patterns, [](const SplitStep& s) { return s.behavior == SplitBehavior::removed; }) ||
      std::ranges::any_of(spec.added, [](const AddedToken& token) { return token.lstrip || token.rstrip; }))
    return 0;
  size_t longest = 1;
  for (const std::string& token : spec.tokens) longest = std::max(longest, token.size());
  return static_cast<int64_t>(longest) * shrinks;
}

using Model = std::variant<Bpe, UnigramModel, WordModel, SentencePiece>;

Model model_of(const TokenizerSpec& spec) {
  if (!spec.sentencepiece.empty())
    return Model(std::in_place_type<SentencePiece>, parse_sentencepiece_model(spec.sentencepiece, "the model"));
  if (spec.model == TokenizerSpec::Model::unigram) return Model(std::in_place_type<UnigramModel>, spec);
  if (spec.model != TokenizerSpec::Model::bpe) return Model(std::in_place_type<WordModel>, spec);
  return Model(std::in_place_type<Bpe>, spec);
}

}  // namespace

// Members refer to `spec`, so Tables never move.
struct Tokenizer::Tables {
  TokenizerSpec spec;
  Normalizer normalizer;
  Pretokenizer pretokenizer;
  Model model;
  Decoder decoder;                 // of a character-level vocabulary
  std::vector<std::string> bytes;  // of its tokens
  TokenMap tokens;
  AddedTokenMatcher raw_matcher, normalized_matcher;  // before and after normalisation
  std::optional<int32_t> end_of_text;
  int64_t most_bytes;  // most bytes of text in one token; 0: unlimited

  explicit Tables(TokenizerSpec given)
      : spec(std::move(given)),
        normalizer(spec.normalizers),
        pretokenizer(spec.patterns),
        model(model_of(spec)),
        decoder(spec.decoding),
        bytes(bytes_of_tokens(spec, decoder)),
        tokens(map_of_tokens(spec, bytes_of())),
        most_bytes(most_bytes_of_a_token(spec)) {
    for (auto name = kEndOfText.rbegin(); name != kEndOfText.rend(); ++name)
      for (const AddedToken& token : spec.added)
        if (token.text == *name) end_of_text = token.id;
    for (const AddedToken& token : spec.added) {
      if (token.normalized)
        normalized_matcher.add(normalizer(token.text), token);
      else
        raw_matcher.add(token.text, token);
    }
  }

  const std::vector<std::string>& bytes_of() const { return spec.byte_level ? spec.tokens : bytes; }

  void encode_words(std::string_view text, const PiecesSink& sink, size_t beginning) const {
    if (!spec.prefix_space || text.starts_with(' ')) return pretokenizer.split_pieces(text, sink, beginning);
    pretokenizer.split_pieces(cat(' ', text), sink, beginning);
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
  encode_until(text, out, allow_special, {});
}

void Tokenizer::encode_to(std::string_view text, std::vector<int32_t>& out, std::span<const TextSpan> literal) const {
  encode_until(text, out, true, literal);
}

bool Tokenizer::fits(std::string_view text, int64_t most_tokens, bool allow_special) const {
  const auto most = static_cast<size_t>(most_tokens);
  if (tables_->most_bytes > 0 && text.size() / static_cast<size_t>(tables_->most_bytes) > most) return false;
  std::vector<int32_t> ids;
  try {
    encode_until(text, ids, allow_special, {}, most);
  } catch (const TooManyTokens&) {
    return false;
  }
  return true;
}

void Tokenizer::encode_until(std::string_view text, std::vector<int32_t>& out, bool allow_special,
                             std::span<const TextSpan> literal, size_t most) const {
  const Tables& t = *tables_;
  const auto check = [&] {
    if (out.size() > most) throw TooManyTokens{};
  };
  const auto token = [&](int32_t id) { out.push_back(id), check(); };
  if (const auto* sentencepiece = std::get_if<SentencePiece>(&t.model))
    return cut(
        text, t.raw_matcher, allow_special, literal,
        [&](std::string_view piece) { sentencepiece->encode(piece, out, most), check(); }, token);
  PiecesSink words;
  const auto one_by_one = [&](const auto* model) {
    return [model, &out, &check](const Pieces& pieces) {
      pieces.each([&](std::string_view piece) { model->encode(piece, out), check(); });
    };
  };
  if (const auto* bpe = std::get_if<Bpe>(&t.model))
    words = [bpe, &out, &check](const Pieces& pieces) { bpe->encode_words(pieces, out), check(); };
  else if (const auto* unigram = std::get_if<UnigramModel>(&t.model))
    words = one_by_one(unigram);
  else
    words = one_by_one(&std::get<WordModel>(t.model));
  // `beginning`: number of bytes that come from the first character of the text.
  const auto normalized = [&](std::string_view piece, size_t beginning, const std::vector<TextSpan>& spans) {
    cut(
        piece, t.normalized_matcher, allow_special, spans,
        [&](std::string_view rest) {
          const auto at = static_cast<size_t>(rest.data() - piece.data());
          t.encode_words(rest, words, beginning - std::min(at, beginning));
        },
        token);
  };
  const auto plain = [&](std::string_view piece) {
    size_t beginning = piece.data() == text.data() ? character_length(piece) : 0;
    std::vector<TextSpan> spans;
    if (t.normalized_matcher.has_special())
      spans = spans_in(literal, static_cast<size_t>(piece.data() - text.data()), piece.size());
    if (!t.normalizer.may_change(piece)) return normalized(piece, beginning, spans);
    for (TextSpan& span : spans)  // normalising a prefix gives a prefix of the normalised text
      span = {t.normalizer(piece.substr(0, span.begin)).size(), t.normalizer(piece.substr(0, span.end)).size()};
    const std::string changed = t.normalizer(piece, beginning);
    normalized(changed, beginning, spans);
  };
  cut(text, t.raw_matcher, allow_special, literal, plain, token);
}

std::vector<int32_t> Tokenizer::encode_whole(std::string_view text, bool allow_special) const {
  std::vector<int32_t> ids = spec().before;
  encode_to(text, ids, allow_special);
  ids.insert(ids.end(), spec().after.begin(), spec().after.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text, bool allow_special) const {
  std::vector<int32_t> ids = encode(text, allow_special);
  const std::vector<int32_t>& before = spec().before;
  if (ids.size() < before.size() || !std::equal(before.begin(), before.end(), ids.begin()))
    ids.insert(ids.begin(), before.begin(), before.end());
  return ids;
}

int64_t Tokenizer::text_bytes(int32_t id) const {
  const auto is_added = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  if (id == end_of_text() || is_added(spec().before) || is_added(spec().after)) return 0;
  return static_cast<int64_t>(token_bytes(id).size());
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  if (!decodes_by_token()) {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      if (has_token(id)) tokens.push_back(spec().tokens[static_cast<size_t>(id)]);
    }
    return tables_->decoder.decode(std::move(tokens));
  }
  std::string text;
  bool first = true;
  for (const int32_t id : ids) {
    if (first)
      text += first_token_bytes(id);
    else
      text += token_bytes(id);
    first = first && !has_token(id);
  }
  return text.substr(std::min({leading_spaces(), text.find_first_not_of(' '), text.size()}));
}

bool Tokenizer::decodes_by_token() const {
  return tables_->decoder.by_token();
}

size_t Tokenizer::leading_spaces() const {
  return tables_->decoder.leading_spaces();
}

bool Tokenizer::has_token(int32_t id) const {
  require<DataError>(id >= 0 && id < vocab_size(), "the token id ", id, " is outside the vocabulary of ", vocab_size(),
                     " tokens: are these tokens from another tokenizer?");
  return !spec().tokens[static_cast<size_t>(id)].empty() || id == spec().empty_token;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  has_token(id);  // throws for an id outside the vocabulary
  if (const auto* sentencepiece = std::get_if<SentencePiece>(&tables_->model))
    if (id == sentencepiece->model().unk) return sentencepiece->model().unk_surface;
  return tables_->bytes_of()[static_cast<size_t>(id)];
}

std::string Tokenizer::first_token_bytes(int32_t id) const {
  const std::string_view bytes = token_bytes(id);
  if (spec().byte_level || !spec().sentencepiece.empty() || !has_token(id)) return std::string(bytes);
  return tables_->decoder.piece(spec().tokens[static_cast<size_t>(id)], true);
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(tables_->spec.tokens.size());
}

std::optional<int32_t> Tokenizer::token_id(std::string_view bytes) const {
  for (const AddedToken& token : spec().added)
    if (token.text == bytes) return token.id;
  const int32_t id = tables_->tokens.find(bytes);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<int32_t> Tokenizer::end_of_text() const {
  return tables_->end_of_text;
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
  hash_extensions(hasher, s);
  return hasher.hex();
}

const TokenizerSpec& Tokenizer::spec() const {
  return tables_->spec;
}

size_t incomplete_utf8_suffix(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const std::string_view beginning = text.substr(text.size() - length);
    const auto lead = static_cast<unsigned char>(beginning[0]);
    if ((lead & 0xC0) == 0x80) continue;  // a continuation byte: look further back
    const size_t whole = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || length >= whole) return 0;
    if (length == 1) return 1;
    // After a valid second byte any continuation is valid; after an invalid one none is.
    const std::string completed = std::string(beginning) + std::string(whole - length, '\x80');
    return find_invalid_utf8(completed) == std::string::npos ? length : 0;
  }
  return 0;
}

std::string StreamingDecoder::push(int32_t id) {
  if (!tokenizer_.decodes_by_token()) return push_whole(id);
  const bool first = std::exchange(begins_text_, begins_text_ && !tokenizer_.has_token(id));
  withheld_ += first ? tokenizer_.first_token_bytes(id) : std::string(tokenizer_.token_bytes(id));
  std::string text = std::exchange(withheld_, {});
  for (; spaces_ > 0 && text.starts_with(' '); --spaces_) text.erase(0, 1);
  if (!text.empty()) spaces_ = 0;
  withheld_ = text.substr(text.size() - incomplete_utf8_suffix(text));
  text.resize(text.size() - withheld_.size());
  return replace_invalid_utf8(text);
}

// Returns new text of all tokens so far, except for last characters that further tokens may change.
std::string StreamingDecoder::push_whole(int32_t id) {
  tokens_.push_back(id);
  const std::string text = replace_invalid_utf8(tokenizer_.decode(tokens_));
  std::string_view shown = text;
  while (shown.ends_with("\uFFFD")) shown.remove_suffix(3);
  if (shown.size() <= shown_) return {};
  return std::string(shown.substr(std::exchange(shown_, shown.size())));
}

std::string StreamingDecoder::flush() {
  if (!tokens_.empty()) {
    const std::string text = replace_invalid_utf8(tokenizer_.decode(std::exchange(tokens_, {})));
    return text.substr(std::min(std::exchange(shown_, 0), text.size()));
  }
  return replace_invalid_utf8(std::exchange(withheld_, {}));
}

}  // namespace witan

#include "witan/tokenizer/tokenizer.h"

#include <array>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/tokenizer/added_tokens.h"
#include "witan/tokenizer/bpe.h"
#include "witan/tokenizer/normalizer.h"
#include "witan/tokenizer/pretokenizer.h"
#include "witan/tokenizer/token_map.h"
#include "witan/tokenizer/tokenizer_json.h"

namespace witan {
namespace {

constexpr uint64_t kFileLimit = uint64_t{256} << 20;  // the largest published files are below 50 MB

// Ends of documents by the names that published tokenizers give them, the ends of chat turns last.
constexpr std::array<std::string_view, 8> kEndOfText = {
    "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "[EOS]", "<|eot_id|>", "<|im_end|>"};

TokenMap map_of_tokens(const TokenizerSpec& spec) {
  TokenMap map(spec.tokens);
  for (const AddedToken& token : spec.added) map.insert(token.id);
  for (size_t id = 0; id < spec.tokens.size(); ++id)
    if (!spec.tokens[id].empty()) map.insert(static_cast<int32_t>(id));
  return map;
}

// Cuts `text` at added tokens: `token(id)` for each of them, `plain(piece)` for what stands between.
template <class Plain, class Token>
void cut(std::string_view text, const AddedTokenMatcher& matcher, bool allow_special, Plain plain, Token token) {
  size_t done = 0;
  while (const auto match = matcher.find(text, done, allow_special)) {
    if (match->begin > done) plain(text.substr(done, match->begin - done));
    token(match->id);
    done = match->begin + match->length;
  }
  if (done < text.size()) plain(text.substr(done));
}

void hash_text(Hasher& hasher, std::string_view text) {
  const uint64_t size = text.size();  // lengths keep neighbours apart
  hasher.update(&size, sizeof size);
  hasher.update(text.data(), text.size());
}

}  // namespace

// Members refer to `spec`, so Tables never move.
struct Tokenizer::Tables {
  TokenizerSpec spec;
  Pretokenizer pretokenizer;
  Bpe bpe;
  TokenMap tokens;
  AddedTokenMatcher raw_matcher, normalized_matcher;  // before and after normalisation

  explicit Tables(TokenizerSpec given)
      : spec(std::move(given)), pretokenizer(spec.patterns), bpe(spec), tokens(map_of_tokens(spec)) {
    for (const AddedToken& token : spec.added) {
      if (token.normalized)
        normalized_matcher.add(spec.nfc ? to_nfc(token.text) : token.text, token.id, token.special);
      else
        raw_matcher.add(token.text, token.id, token.special);
    }
  }

  void encode_words(std::string_view text, const PieceSink& sink) const {
    if (!spec.prefix_space || text.starts_with(' ')) return pretokenizer.split(text, sink);
    pretokenizer.split(cat(' ', text), sink);
  }
};

Tokenizer::Tokenizer(TokenizerSpec spec) : tables_(std::make_shared<const Tables>(std::move(spec))) {}

Tokenizer Tokenizer::load(const fs::path& path) {
  TokenizerSpec spec = parse_tokenizer_json(read_file(path, kFileLimit), path.string());
  try {
    return Tokenizer(std::move(spec));
  } catch (const DataError& e) {
    throw DataError(cat(path.string(), ": ", e.what()));
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
  const Tables& t = *tables_;
  const PieceSink word = [&](std::string_view piece) { t.bpe.encode_word(piece, out); };
  const auto token = [&](int32_t id) { out.push_back(id); };
  const auto normalized = [&](std::string_view piece) {
    cut(
        piece, t.normalized_matcher, allow_special, [&](std::string_view rest) { t.encode_words(rest, word); }, token);
  };
  const auto plain = [&](std::string_view piece) {
    if (t.spec.nfc && may_change_under_nfc(piece))
      normalized(to_nfc(piece));
    else
      normalized(piece);
  };
  cut(text, t.raw_matcher, allow_special, plain, token);
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += token_bytes(id);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  require<DataError>(id >= 0 && id < vocab_size(), "the token id ", id, " is outside the vocabulary of ", vocab_size(),
                     " tokens: are these tokens from another tokenizer?");
  return tables_->spec.tokens[static_cast<size_t>(id)];
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
  for (const std::string& pattern : s.patterns) hash_text(hasher, pattern);
  hash_text(hasher, cat(s.nfc, s.prefix_space, s.ignore_merges));
  return hasher.hex();
}

const TokenizerSpec& Tokenizer::spec() const {
  return tables_->spec;
}

}  // namespace witan

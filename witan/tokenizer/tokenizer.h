// Converts text to token ids and back: byte-level BPE, as in GPT-2, Llama 3, Qwen and OLMo, character-level BPE, as in
// Llama 2 and Mistral, Unigram, WordPiece and WordLevel. Byte-level BPE is lossless: decode(encode(text)) == text for
// any bytes, unless the tokenizer normalises the text or prepends a space.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/tokenizer/text/added_tokens.h"

namespace witan {

// Immutable and cheap to copy (copies share the tables); every method may be called from several threads.
class Tokenizer {
 public:
  // Throws DataError if the split pattern does not compile or a byte has no token.
  explicit Tokenizer(TokenizerSpec spec);

  // Reads a file or folder of any supported format (files/tokenizer_files.h). Throws IoError, CorruptionError, or
  // DataError for an unsupported kind.
  static Tokenizer load(const fs::path& path);
  // Writes a tokenizer.json, atomically; reading it gives an equal tokenizer. Throws IoError or DiskFullError.
  void save(const fs::path& path) const;

  // The tokens of `text`, without those that go around texts. Text that spells a special token is plain text unless
  // `allow_special`. Throws DataError only if an unknown pattern exceeds its limits (see RegexSplitter), for a
  // pre-token of 2 GiB, and for a character without a token if the model has no unknown token.
  std::vector<int32_t> encode(std::string_view text, bool allow_special = false) const;
  // Appends the tokens to `out`.
  void encode_to(std::string_view text, std::vector<int32_t>& out, bool allow_special = false) const;
  // Matches special tokens except where a byte of them is in `literal` (sorted, disjoint spans). For the output of a
  // chat template, in which the text of the messages is literal.
  void encode_to(std::string_view text, std::vector<int32_t>& out, std::span<const TextSpan> literal) const;
  // Whether encode() gives at most `most_tokens` tokens. Costs little more than encoding a text that just fits: rejects
  // a text with too many bytes at once, and stops encoding at the first pre-token beyond the limit. Normalizers, and
  // SentencePiece's Unigram models that merge unknown characters, still process the whole text.
  bool fits(std::string_view text, int64_t most_tokens, bool allow_special = false) const;

  // The tokens of a whole text: encode() with the tokens that this tokenizer puts around every text, such as Llama's
  // beginning of text (add_special_tokens = True in Hugging Face's tokenizers).
  std::vector<int32_t> encode_whole(std::string_view text, bool allow_special = false) const;
  // The tokens of a text to be continued: encode() after the tokens that this tokenizer puts before every text, unless
  // the text already starts with them.
  std::vector<int32_t> encode_prompt(std::string_view text, bool allow_special = false) const;

  // The text of tokens, with special tokens spelled out. The result is valid UTF-8 only if the ids form a complete text
  // (StreamingDecoder handles parts). Throws DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;
  // Whether decode() concatenates what each token decodes to on its own, except for leading spaces. In a few tokenizers
  // the text depends on adjacent tokens (Decoder).
  bool decodes_by_token() const;
  // How many leading spaces decode() removes, if the text has as many.
  size_t leading_spaces() const;
  // Whether a token uses this id, even one without text. Throws DataError for an id outside the vocabulary.
  bool has_token(int32_t id) const;
  // The bytes of one token that is not the first of its text, valid while a copy of the tokenizer lives; empty for an
  // unused id. Throws DataError for an id outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  // The bytes of a text's first token, if decodes_by_token().
  std::string first_token_bytes(int32_t id) const;

  // How many bytes of text the token stands for: 0 for the end of text and for tokens that are put around texts.
  int64_t text_bytes(int32_t id) const;

  // One more than the largest id.
  int64_t vocab_size() const;
  // The id of the token with these bytes; added tokens come first.
  std::optional<int32_t> token_id(std::string_view bytes) const;
  // The token that ends a document: the first added token among <|endoftext|>, <|end_of_text|>, </s>, …
  std::optional<int32_t> end_of_text() const;

  // A hash of everything that determines the results of encode() and decode(), as 32 hexadecimal digits. It excludes
  // the tokens that are put around texts.
  std::string hash() const;
  const TokenizerSpec& spec() const;

 private:
  // encode_to(). Throws TooManyTokens as soon as `out` has more than `most`.
  struct TooManyTokens {};
  void encode_until(std::string_view text, std::vector<int32_t>& out, bool allow_special,
                    std::span<const TextSpan> literal, size_t most = std::string_view::npos) const;

  struct Tables;
  std::shared_ptr<const Tables> tables_;
};

// Converts tokens to text while they are generated. A token may end in the middle of a character, so the last few bytes
// are withheld until the character is complete.
class StreamingDecoder {
 public:
  // `begins_text`: the first token is the first of its text, and is decoded as such (Tokenizer::decode()).
  explicit StreamingDecoder(Tokenizer tokenizer, bool begins_text = false)
      : tokenizer_(std::move(tokenizer)),
        begins_text_(begins_text),
        spaces_(begins_text ? tokenizer_.leading_spaces() : 0) {}

  // The text that this token completes: valid UTF-8, with U+FFFD for bytes that can never become a character.
  // Throws DataError for an id outside the vocabulary.
  std::string push(int32_t id);
  // The rest at the end, an incomplete character as U+FFFD.
  std::string flush();

 private:
  std::string push_whole(int32_t id);

  Tokenizer tokenizer_;
  bool begins_text_;
  size_t spaces_;                // leading spaces still to be removed
  std::string withheld_;         // the start of one character: at most 3 bytes
  std::vector<int32_t> tokens_;  // all tokens, unless Tokenizer::decodes_by_token()
  size_t shown_ = 0;             // bytes of their text that were returned
};

// The number of bytes at the end of `text` that start a UTF-8 character without completing it.
size_t incomplete_utf8_suffix(std::string_view text);

}  // namespace witan

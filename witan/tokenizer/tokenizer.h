// Converts text to token ids and back: BPE of bytes, as in GPT-2, Llama 3, Qwen and OLMo, or of characters, as in Llama
// 2 and Mistral, and Unigram. BPE of bytes is lossless: decode(encode(text)) == text for any bytes, unless the
// tokenizer normalises its text or adds a space before it.
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

  // Reads a file or folder of any kind (tokenizer_files.h). Throws IoError, CorruptionError, or DataError for an
  // unsupported kind.
  static Tokenizer load(const fs::path& path);
  // Writes a tokenizer.json, atomically; reading it gives an equal tokenizer. Throws IoError or DiskFullError.
  void save(const fs::path& path) const;

  // The tokens of `text` alone. Text that spells a special token is plain text unless
  // `allow_special`. Throws DataError only for a pattern of unknown cost (see RegexSplitter), a pre-token of 2 GiB, and
  // a character that has no token in a Unigram model without an unknown one.
  std::vector<int32_t> encode(std::string_view text, bool allow_special = false) const;
  // The same, appended to `out`.
  void encode_to(std::string_view text, std::vector<int32_t>& out, bool allow_special = false) const;
  // With special tokens, but for those that a byte of `literal` belongs to: what a chat template writes, of which the
  // messages' own text is literal. The spans are in order and apart from each other.
  void encode_to(std::string_view text, std::vector<int32_t>& out, std::span<const TextSpan> literal) const;
  // Whether encode() gives at most so many tokens, found with little more work than for a text that just fits: a text
  // of more bytes than so many tokens stand for is not looked at, and others up to the first pre-token beyond. A
  // normalizer sees all of them, and so does a Unigram model of SentencePiece's that merges unknown characters.
  bool fits(std::string_view text, int64_t most_tokens, bool allow_special = false) const;

  // The tokens of a whole text: those of encode() between the ones that this tokenizer puts around every text, such as
  // the beginning of text of Llama (add_special_tokens = True of Hugging Face's tokenizers).
  std::vector<int32_t> encode_whole(std::string_view text, bool allow_special = false) const;
  // The tokens of a text that is to be continued: what this tokenizer puts before every text, unless the text spells
  // it, and those of encode().
  std::vector<int32_t> encode_prompt(std::string_view text, bool allow_special = false) const;

  // The text of tokens, special tokens as their text. The result is valid UTF-8 only if the ids are those of a complete
  // text (StreamingDecoder handles parts). Throws DataError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;
  // Whether decode() gives what every token is on its own, but for spaces at the beginning of the text. Few tokenizers
  // have a text that depends on which tokens stand together (Decoder).
  bool decodes_by_token() const;
  // At most so many spaces at the beginning are left out by decode().
  size_t leading_spaces() const;
  // Whether a token uses this id, even one without text. Throws DataError for an id outside the vocabulary.
  bool has_token(int32_t id) const;
  // The bytes of one token that stands behind others, valid while a copy of the tokenizer lives; empty for an id that
  // no token uses. Throws DataError for an id outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  // The same of the first token of a text, where decodes_by_token().
  std::string first_token_bytes(int32_t id) const;

  // How many bytes of a text the token is: none for the end of text, and for what is put around texts.
  int64_t text_bytes(int32_t id) const;

  // One more than the largest id.
  int64_t vocab_size() const;
  // The id of the token with these bytes; added tokens come first.
  std::optional<int32_t> token_id(std::string_view bytes) const;
  // The token that ends a document: the first added token among <|endoftext|>, <|end_of_text|>, </s>, …
  std::optional<int32_t> end_of_text() const;

  // Hash of everything that determines the results of encode() and decode(), but not what is put around texts, as 32
  // hexadecimal digits.
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

}  // namespace witan

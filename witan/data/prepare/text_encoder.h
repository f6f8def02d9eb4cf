// The part of a tokenizer that data preparation needs, so that it does not depend on one tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/tokenizer/text/added_tokens.h"

namespace witan {

class Tokenizer;

struct TextEncoder {
  // Appends the tokens of a whole text, with those that the tokenizer puts around texts except for its end of text,
  // which the caller puts there. Thread-safe.
  std::function<void(std::string_view text, std::vector<int32_t>& out)> encode;
  // Tokenizer::text_bytes().
  std::function<int64_t(int32_t token)> token_bytes;
  int64_t vocab_size = 0;
  std::optional<int32_t> end_of_text = {};
  std::string hash;  // changes whenever the tokens would change
  // The tokens of a text alone, with the special tokens that it spells outside of literal spans (Tokenizer::encode_to).
  std::function<void(std::string_view text, std::span<const TextSpan> literal, std::vector<int32_t>& out)> encode_chat =
      {};
  std::string vocabulary = {};  // what ids stand for (vocabulary_digest()); empty: not known
  std::string file = {};        // where the tokenizer lies; empty: beside the shards, or not known
};

// Tokenizer::hash(), and the tokens that the tokenizer puts around whole texts, if any.
std::string hash_of_whole_texts(const Tokenizer& tokenizer);

TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer);

// A tokenizer as Megatron-LM's preprocess_data.py names it (--tokenizer-type ...).
struct MegatronTokenizerOptions {
  std::string type = {};                      // HuggingFaceTokenizer, GPT2BPETokenizer, ...; empty: what the file is
  fs::path model = {};                        // a file or a folder
  fs::path vocab_file = {}, merge_file = {};  // of GPT2BPETokenizer
  bool append_eod = false;                    // after each document with tokens
  bool bare = false;                          // without what the tokenizer puts around texts
  std::string eod_token = {};                 // what --append-eod adds; empty: what megatron_eod() finds
};

// Texts are encoded with what the tokenizer puts around them unless `bare`. With types of Hugging Face's library, text
// that spells a special token becomes that token, as there; with SentencePiece's, and without a type, it stays text.
// Throws ConfigError for a type that is not known, not supported (both with the way out), or lacks its file; and what
// Tokenizer::load() throws.
TextEncoder megatron_encoder(const MegatronTokenizerOptions& options);

// The token that ends a document: `eos_token` of the tokenizer_config.json in the folder of the tokenizer; without one
// the tokenizer's end of text. Nothing if there is none.
std::optional<int32_t> megatron_eod(const Tokenizer& tokenizer, const fs::path& file_or_folder);

}  // namespace witan

// Tokenizers as Megatron-LM's preprocess_data.py uses them, by its names (--tokenizer-type ...).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/data/prepare/text_encoder.h"

namespace witan {

struct MegatronTokenizerOptions {
  std::string type = {};                      // HuggingFaceTokenizer, GPT2BPETokenizer, ...; empty: what the file is
  fs::path model = {};                        // a file or a folder
  fs::path vocab_file = {}, merge_file = {};  // of GPT2BPETokenizer
  bool append_eod = false;                    // behind each document with tokens
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

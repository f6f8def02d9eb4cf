// Reads and writes the files of tokenizers, one source for each format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

class GgufMetadata;

// Recognises the format of a file or folder by its content, and reads it. `path` is one of
//   a tokenizer.json (Hugging Face), a tekken.json (Mistral), a SentencePiece .model,
//   a rank file (.tiktoken, also Llama 3's and 4's tokenizer.model): FILE#PATTERN names its pattern if the number of
//   its ranks does not identify it (parse_tiktoken()),
//   a GGUF file, of which the vocabulary is read,
//   vocab.json with merges.txt beside it, or gpt2-vocab.json with gpt2-merges.txt, or two files of any names as
//   "VOCABULARY,MERGES",
//   a folder with one of these.
// Throws IoError, CorruptionError, or DataError for an unsupported format.
TokenizerSpec read_tokenizer(const fs::path& path);

// In all parsers `source` names the file in messages.

// Hugging Face's tokenizer.json; docs/formats/tokenizer_json.md lists what is supported. Throws CorruptionError for
// text that is not such a file or contradicts itself, DataError naming the construct for an unsupported tokenizer.
TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view source);
// The text of a tokenizer.json that behaves as `spec`; parsing it gives an equal spec.
std::string write_tokenizer_json(const TokenizerSpec& spec);
// Makes the post-processor of `spec` put these tokens of the vocabulary, if any, before and after each text.
void put_around_texts(std::optional<int32_t> first, std::optional<int32_t> last, TokenizerSpec& spec);

// GPT-2's pair of files: vocab.json (token to id) and merges.txt (a merge per line), a byte-level BPE. `pattern` is a
// name that split_pattern_named() knows; empty: GPT-2's. Keys that are special tokens of published files (<s>, <pad>,
// <|...|>) become special tokens. Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py
TokenizerSpec parse_vocab_and_merges(std::string_view vocab, std::string_view vocab_source, std::string_view merges,
                                     std::string_view merges_source, std::string_view pattern);
// The file of merges that belongs to a vocab.json; nullopt if there is none.
std::optional<fs::path> merges_beside(const fs::path& vocabulary);

// Rank files of tiktoken: a line per token with its bytes in base64, a space, and its id, which is also the rank of the
// merges that produce it. They hold neither the pattern nor special tokens; published files are recognised by their
// number of ranks: r50k, p50k, cl100k and o200k (OpenAI), Llama 3 and 4, Qwen. For others `pattern` names the pattern,
// and there are no special tokens. Throws CorruptionError for a damaged file, DataError if the pattern is unknown.
// Source: load_tiktoken_bpe() of https://github.com/openai/tiktoken/blob/main/tiktoken/load.py
TokenizerSpec parse_tiktoken(std::string_view text, std::string_view source, std::string_view pattern);
bool looks_like_ranks(std::string_view text);
// The split pattern with this name: gpt2, cl100k, llama3 (the same), qwen2, qwen3.5, o200k, tekken or kimi. Throws
// DataError for any other name.
std::string split_pattern_named(std::string_view name);
// Gives `spec` the merges of its tokens `ids`, whose ids are their ranks, and tiktoken's rule that a word which is
// itself a token is not merged. Throws CorruptionError for a token that appears twice.
void complete_ranks(TokenizerSpec& spec, const std::vector<int32_t>& ids, std::string_view source);

// Mistral's tekken.json: tokens in base64 by rank, after the ids of the special tokens, and the split pattern. Throws
// CorruptionError for text that is not such a file or contradicts itself. Source:
// https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/tokens/tokenizers/tekken.py
TokenizerSpec parse_tekken(std::string_view text, std::string_view source);
bool looks_like_tekken(std::string_view text);

// The vocabulary of a GGUF file, tokenizer.ggml.*. Supported values of tokenizer.ggml.model: gpt2 (byte-level BPE, with
// the pre-tokenizer that tokenizer.ggml.pre names), llama (SentencePiece's BPE) and t5 (its Unigram). Throws
// CorruptionError for damaged keys, DataError naming an unsupported model or pre-tokenizer. Source:
// convert_hf_to_gguf.py and src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp
TokenizerSpec parse_gguf_vocabulary(const GgufMetadata& metadata);
// Adds the tokenizer's keys, padded to `vocab_size` with tokens that no text becomes. Throws DataError naming what a
// GGUF vocabulary cannot express.
void write_gguf_vocabulary(const TokenizerSpec& spec, int64_t vocab_size, GgufMetadata& metadata);

}  // namespace witan

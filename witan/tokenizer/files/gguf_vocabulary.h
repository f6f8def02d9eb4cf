// The vocabularies of GGUF files, tokenizer.ggml.*, as tokenizers, and back. Source: convert_hf_to_gguf.py and
// src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp
#pragma once

#include <cstdint>

#include "witan/formats/gguf.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Of tokenizer.ggml.model gpt2 (BPE of bytes; tokenizer.ggml.pre names how text is split), llama (SentencePiece's BPE)
// and t5 (its Unigram). Throws CorruptionError for damaged keys, DataError naming a model or a pre-tokenizer that Witan
// does not read.
TokenizerSpec parse_gguf_vocabulary(const GgufMetadata& metadata);

// Puts the keys of the tokenizer, filled up to `vocab_size` tokens with ones that no text becomes. Throws DataError
// naming what llama.cpp has no vocabulary for.
void write_gguf_vocabulary(const TokenizerSpec& spec, int64_t vocab_size, GgufMetadata& metadata);

}  // namespace witan

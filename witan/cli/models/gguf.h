// What `witan import` and `witan export` do with GGUF files beside their weights: the vocabulary, the chat template and
// the tokens that begin and end a text.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "witan/cli/models/exported_run.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/formats/gguf.h"

namespace witan::cli {

// The file's vocabulary as a tokenizer.json; says so if Witan cannot read it.
std::optional<std::string> tokenizer_of_gguf(const GgufWeights& weights, std::FILE* err);

// Writes what a Hugging Face folder of the same model has beside its weights: config.json, and tokenizer_config.json
// with the chat template.
void write_companions_of_gguf(const GgufWeights& weights, const fs::path& folder);

// The keys of a run's vocabulary; of a run without a tokenizer, that there is none. Throws DataError for what a GGUF
// file cannot hold.
GgufMetadata gguf_vocabulary_of(const ExportedRun& run);

}  // namespace witan::cli

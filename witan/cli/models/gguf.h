// Contents of GGUF files besides the weights, for `witan import` and `witan export`: the vocabulary, the chat template,
// the tokens that begin and end a text, and what a model that reads images says beside its text decoder.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "witan/cli/models/exported_run.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/formats/gguf.h"

namespace witan::cli {

// The file's vocabulary as a tokenizer.json; nothing, with a message on `err`, if Witan cannot read it.
std::optional<std::string> tokenizer_of_gguf(const GgufWeights& weights, std::FILE* err);

// Writes the files of a Hugging Face folder of the same model: config.json, and tokenizer_config.json with the chat
// template.
void write_companions_of_gguf(const GgufWeights& weights, const fs::path& folder);

// The metadata of a run's vocabulary; for a run without a tokenizer, that it has none. Throws DataError if a GGUF file
// cannot hold the vocabulary.
GgufMetadata gguf_vocabulary_of(const ExportedRun& run);

// Replaces the sections of rotary positions, which only images and videos tell apart, and the number of layers that
// read an image's features again by those of the imported model's config.json, if the architecture's files have such
// keys. Throws ConfigError for sections that are not up to four whole numbers.
void keep_image_keys(const ExportedRun& run, const Architecture& architecture, GgufMetadata& metadata);

}  // namespace witan::cli

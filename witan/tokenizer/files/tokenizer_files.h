// Finds out of what kind the file or folder of a tokenizer is, by its content, and reads it.
#pragma once

#include <optional>

#include "witan/base/files/file.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// `path` is one of
//   a tokenizer.json (Hugging Face), a tekken.json (Mistral), a SentencePiece .model,
//   a rank file (.tiktoken, also Llama 3's and 4's tokenizer.model): FILE#PATTERN names its pattern, if the number of
//   its ranks does not (tiktoken.h),
//   a GGUF file, whose vocabulary is read (gguf_vocabulary.h),
//   vocab.json, with a merges.txt beside it; or gpt2-vocab.json, with gpt2-merges.txt,
//   a folder with one of these.
// Throws IoError, CorruptionError, or DataError for an unsupported kind.
TokenizerSpec read_tokenizer(const fs::path& path);

// The file of merges that belongs to a vocabulary of that name; nothing if there is none.
std::optional<fs::path> merges_beside(const fs::path& vocabulary);

}  // namespace witan

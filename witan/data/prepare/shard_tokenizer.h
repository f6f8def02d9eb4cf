// Whether token shards are read with the tokenizer that they were made with, as far as their manifest says.
#pragma once

#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

struct TokenizerMismatch {
  bool certain = false;  // ids stand for other tokens; else it is not known, or only the division of text differs
  std::string message;   // names the shards and both tokenizers, and how they differ
  std::string own;       // the file of the shards' own tokenizer, if it lies beside them
};

// `shards`: PREFIX, PREFIX.bin or PREFIX.idx. `name`: that of the tokenizer, for the message. Nothing where the
// tokenizers are one, or the shards have no manifest that says which theirs is.
std::optional<TokenizerMismatch> find_tokenizer_mismatch(const fs::path& shards, const Tokenizer& tokenizer,
                                                         const std::string& name);

}  // namespace witan

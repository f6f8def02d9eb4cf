// Token shards, as several commands of `witan data` read them.
#pragma once

#include <optional>
#include <string>

#include "witan/cli/command.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

// Describes token shards, for `witan data inspect PREFIX` and `witan data --inspect PREFIX`. `tokenizer`: a file;
// empty: the shards' own tokenizer, if there is one.
ExitCode describe_shards(Context& context, const std::string& path, const std::string& tokenizer);

// Returns PREFIX for PREFIX, PREFIX.bin or PREFIX.idx.
std::string prefix_of_shards(const std::string& path);
// The tokenizer of this name, or the one beside the shards. Warns on `err` if the shards were made with another one.
std::optional<Tokenizer> tokenizer_of_shards(const std::string& path, const std::string& name, std::FILE* err);
// Whether the path names token shards rather than text.
bool names_shards(const std::string& path);

}  // namespace witan::cli

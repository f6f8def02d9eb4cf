// What the commands that look into token shards share.
#pragma once

#include <optional>
#include <string>

#include "witan/cli/command.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

// `witan data inspect PREFIX`, and `witan data --inspect PREFIX`: what token shards hold. Without the name of a
// tokenizer, that of the shards themselves is used if there is one.
ExitCode describe_shards(Context& context, const std::string& path, const std::string& tokenizer);

// PREFIX of PREFIX, PREFIX.bin or PREFIX.idx.
std::string prefix_of_shards(const std::string& path);
// The tokenizer of this name, or the one that lies beside the shards. Warns on `err` where they were made with another.
std::optional<Tokenizer> tokenizer_of_shards(const std::string& path, const std::string& name, std::FILE* err);
// Whether the path names token shards rather than text.
bool names_shards(const std::string& path);

}  // namespace witan::cli

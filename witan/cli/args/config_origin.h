// What a run's configuration was taken from, by name: a comment at the head of its config.toml, for people and for
// `witan runs`. Nothing depends on it.
#pragma once

#include <string>

#include "witan/base/files/file.h"

namespace witan::cli {

// "# from preset gpt2-124m, mine.toml", with a line feed; empty where neither is named.
std::string origin_line(const std::string& preset, const std::string& file);

// "# from Hugging Face folder base": of any source in words.
std::string origin_line(const std::string& source);

// "preset gpt2-124m, mine.toml" of a config.toml; empty where it says nothing, or cannot be read.
std::string read_origin(const fs::path& config_toml);

// The line itself, with its line feed; likewise.
std::string origin_line_of(const fs::path& config_toml);

}  // namespace witan::cli

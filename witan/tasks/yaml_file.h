// Reads YAML files as Python's yaml.safe_load() does, except that the words yes, no, on and off stay text.
#pragma once

#include <string>

#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/value.h"

namespace witan {

// The mapping in the file, with the keys of the files that it includes (`include: FILE`, or a list of files in the same
// folder); its own keys take precedence. A tagged value becomes {"!tag": text}: `!function f` is {"!function": "f"}.
// Throws DataError naming the file, and the line if it is not YAML.
jinja::Value read_yaml_file(const fs::path& file);

// The mapping in a text, without resolving includes; `name` identifies it in messages. Throws DataError.
jinja::Value parse_yaml(const std::string& text, const std::string& name);

}  // namespace witan

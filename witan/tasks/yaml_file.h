// YAML files as values, as Python's yaml.safe_load() reads them but for the words yes, no, on and off, which stay text.
#pragma once

#include <string>

#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/value.h"

namespace witan {

// The mapping that the file is, with the keys of the files that it includes (`include: FILE`, or a list of them, beside
// it): its own come last and so count. A value with a tag of its own is {"!tag": text}, as that of `!function f` is
// {"!function": "f"}. Throws DataError naming the file, and the line of what is not YAML.
jinja::Value read_yaml_file(const fs::path& file);

// The mapping that a text is, without what it includes; `name` is what messages call it. Throws DataError.
jinja::Value parse_yaml(const std::string& text, const std::string& name);

}  // namespace witan

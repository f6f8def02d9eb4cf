// Files that a command writes to a path of the user's choice. It overwrites no files but its own.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"

namespace witan {

// A file that a flag names: a new one, or one that the same command has written, which is replaced as a whole. Nothing
// is written over another file, through a link, or into a pipe or device.
struct OutputFile {
  fs::path path;
  std::string flag;                                    // its name in errors: "witan eval: --json"
  std::string kind;                                    // "page", "file of figures"
  std::function<bool(std::string_view bytes)> is_own;  // whether an existing file is of this kind

  // Throws UsageError, with the way out, if something else lies there. To be called before the work is begun.
  void require_free() const;
  // Checks again, since the work may have taken hours, and writes. Throws IoError, DiskFullError, too.
  void write(std::string_view text) const;
};

// Whether the bytes are a JSON object with all of these keys.
bool is_json_with(std::string_view bytes, std::initializer_list<const char*> keys);
// Whether the first line of the bytes is such an object.
bool begins_with_json(std::string_view bytes, std::initializer_list<const char*> keys);

// Throws ConfigError, with the way out, if there is anything at `path`, which is to be made. `flag` names the output.
void refuse_existing(const fs::path& path, const std::string& flag = "--output");

}  // namespace witan

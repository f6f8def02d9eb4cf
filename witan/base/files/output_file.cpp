#include "witan/base/files/output_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan {

void OutputFile::require_free() const {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  require<UsageError>(type != fs::file_type::directory && path.has_filename(), flag, " ", path.string(),
                      " is a folder: name a file in it");
  if (type == fs::file_type::not_found || type == fs::file_type::none) return;  // writing reports the error
  const char* const other = type == fs::file_type::symlink   ? " but a link"
                            : type != fs::file_type::regular ? " but a pipe or a device"
                                                             : "";
  require<UsageError>(*other == 0 && is_own(MappedFile(path).text()), flag, " ", path.string(),
                      " is there already and is no ", kind, " of this command", other,
                      ": name a new file, or remove it first");
}

void OutputFile::write(std::string_view text) const {
  require_free();
  write_file_atomically(path, text);
}

bool is_json_with(std::string_view bytes, std::initializer_list<const char*> keys) try {
  constexpr size_t kMost = size_t{1} << 28;
  if (!bytes.starts_with('{') || bytes.size() > kMost) return false;
  const Json found = parse_json(bytes, "");
  return std::ranges::all_of(keys, [&](const char* key) { return found.contains(key); });
} catch (const CorruptionError&) {
  return false;
}

bool begins_with_json(std::string_view bytes, std::initializer_list<const char*> keys) {
  return is_json_with(bytes.substr(0, bytes.find('\n')), keys);
}

void refuse_existing(const fs::path& path, const std::string& flag) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  require<ConfigError>(!fs::exists(status), path.string(),
                       " exists already, and this command would make it: remove it, or give another ", flag);
}

}  // namespace witan

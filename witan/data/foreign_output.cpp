#include "witan/data/foreign_output.h"

#include "witan/base/error.h"

namespace witan {

void refuse_existing(const fs::path& path, const std::string& option) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  require<ConfigError>(!fs::exists(status), path.string(),
                       " exists already, and this command would make it: remove it, or give another ", option);
}

}  // namespace witan

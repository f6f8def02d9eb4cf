// The record of a command's outputs, `.NAME.made.json` beside them. It tells the same command that nothing is left to
// do, and every command which files it must not overwrite.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/data/corpus/sources.h"

namespace witan {

// `path` without the ending .jsonl, with which the names of files beside it begin.
std::string stem_of_rows(const fs::path& path);
// The file of unusable rows, NAME.quarantine.jsonl.
fs::path quarantine_beside(const fs::path& output);
// `.NAME` and `what` in the folder of the output. The file is hidden, so that reading a folder of rows skips it.
fs::path hidden_beside(const fs::path& output, const std::string& what);

// Throws UsageError if one of the outputs, of which some may be empty, is one of the sources.
void require_no_source(const std::vector<fs::path>& outputs, const std::vector<Source>& sources);

// Not thread-safe.
class MadeRecord {
 public:
  // Reads what an earlier command has left; a damaged record counts as none.
  explicit MadeRecord(const fs::path& output);

  // The result that the command of this key recorded, if its outputs still have their sizes; else null.
  nlohmann::json find(const nlohmann::json& key) const;
  // Throws ConfigError if one of the outputs exists, or one of the files beside them which no earlier command recorded
  // here: those are the user's.
  void require_free(const std::vector<fs::path>& outputs, const std::vector<fs::path>& beside) const;
  // Records what the command of this key has made, and the files that there are beside it. A command that failed has no
  // outputs and a null key.
  void write(const nlohmann::json& key, const nlohmann::json& made, const std::vector<fs::path>& outputs,
             const std::vector<fs::path>& beside) const;

 private:
  std::string name_in_record(const fs::path& file) const;
  nlohmann::json describe(const std::vector<fs::path>& files) const;
  bool is_own(const fs::path& file) const;

  fs::path path_;
  nlohmann::json record_;  // null: there is none
};

}  // namespace witan

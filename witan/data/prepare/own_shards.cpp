#include "witan/data/prepare/own_shards.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/files/output_file.h"
#include "witan/base/text.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/prepare/shard_manifest.h"

namespace witan {
namespace {

// Of the quarantine file none is another's loss: it is made anew by every command that has unusable rows.
std::vector<fs::path> files_of_shards(const fs::path& prefix) {
  std::vector<fs::path> files;
  for (const char* suffix : {".bin", ".idx", ".json"}) files.emplace_back(prefix.string() + suffix);
  for (const char* suffix : {".bin", ".idx"}) files.emplace_back(prefix.string() + kLossSuffix + suffix);
  return files;
}

void refuse_sources(const fs::path& file, const std::vector<Source>& sources, const std::string& option) {
  std::error_code absent;
  if (!fs::exists(file, absent)) return;
  for (const Source& source : sources)
    require<ConfigError>(!fs::equivalent(file, source.path, absent), file.string(),
                         " is read, and this command would write its shards there: give another ", option);
}

}  // namespace

void check_own_shards(const fs::path& prefix, const std::vector<Source>& sources, const std::string& option) {
  std::vector<fs::path> files = files_of_shards(prefix);
  for (const fs::path& file : files) refuse_sources(file, sources, option);
  const fs::path quarantine = prefix.string() + ".quarantine.jsonl";
  refuse_sources(quarantine, sources, option);
  quarantine_file(quarantine).require_free();
  for (const char* suffix : {".partial.json", ".partial.lock"})
    if (fs::exists(prefix.string() + suffix)) return;
  const auto made_of = sources_of_shards(prefix);
  if (!made_of) {
    for (const fs::path& file : files) refuse_existing(file, option);
    return;
  }
  const bool same = std::ranges::any_of(sources, [&](const Source& source) {
    return std::ranges::find(*made_of, replace_invalid_utf8(source.path.string())) != made_of->end();
  });
  require<ConfigError>(same, prefix.string(), ".bin has the tokens of other text, of ",
                       made_of->empty() ? "" : made_of->front(), made_of->size() > 1 ? " and more" : "",
                       ": remove it and ", prefix.string(), ".json, or give another ", option);
}

}  // namespace witan

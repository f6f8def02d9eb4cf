// The progress record of preparing token shards: it is accepted, or treated as missing. "KEY" in the input stands for
// the hash of the shards' sources.
#include <nlohmann/json.hpp>

#include "fuzz/support.h"
#include "witan/base/hash.h"
#include "witan/data/prepare/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  static const nlohmann::json key = "fuzz";
  static const std::string hash = hash_hex(key.dump().data(), key.dump().size());
  static PreparationJournal journal(folder / "a", key);
  static const fs::path rows = folder.write("a.partial.quarantine.jsonl", "{}\n{}\n{}\n");
  std::string text(fuzz::text_of(data, size));
  if (const size_t at = text.find("KEY"); at != text.npos) text.replace(at, 3, hash);
  folder.write("a.partial.json", text);
  if (const auto end = journal.find()) {
    journal.write(*end);
    const auto again = journal.find();
    assert(again && again->visited == end->visited && again->start.source == end->start.source);
    assert(again->documents == end->documents && again->tokens == end->tokens);
  }
  return 0;
}

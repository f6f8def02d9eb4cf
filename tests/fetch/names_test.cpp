// Names as huggingface_hub has them (tests/golden/fetch/make_names.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "witan/base/files/file.h"
#include "witan/base/files/glob.h"
#include "witan/base/json.h"
#include "witan/fetch/hub.h"

namespace witan::fetch {
namespace {

Json golden_names() {
  const fs::path path = fs::path(WITAN_SOURCE_DIR) / "tests/golden/fetch/names.json";
  return parse_json(read_file(path), path.string());
}

TEST(FetchNames, AddressesAreThoseOfTheHubsOwnLibrary) {
  const Json names = golden_names();
  for (const Json& place : names["urls"]) {
    const auto kind = place["kind"] == "dataset" ? RepositoryKind::dataset : RepositoryKind::model;
    EXPECT_EQ(file_url({}, {kind, place["name"]}, place["revision"], place["path"]), place["url"].get<std::string>());
  }
}

TEST(FetchNames, PatternsChooseWhatTheHubsOwnLibraryChooses) {
  const Json names = golden_names();
  for (const Json& item : names["chosen"]) {
    std::vector<std::string> chosen;
    for (const std::string path : names["files"])
      if (matches_any({item["pattern"].get<std::string>()}, path)) chosen.push_back(path);
    EXPECT_EQ(chosen, item["chosen"].get<std::vector<std::string>>()) << item["pattern"];
  }
}

}  // namespace
}  // namespace witan::fetch

// The manifest of a fetched folder. An accepted manifest can be continued, with the same contents.
#include "fuzz/support.h"
#include "witan/fetch/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::fetch;
  static const fuzz::Folder folder;
  static const bool made = fs::create_directories(folder / kFetchFolder);
  const Repository repository{RepositoryKind::dataset, "owner/corpus"};
  assert(made);
  folder.write((std::string(kFetchFolder) + "/manifest.jsonl").c_str(), fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] {
    const FetchedFile added{{"added", 1, {DigestKind::sha256, std::string(64, '0')}}, "commit", 7};
    Manifest(folder / ".", repository).add(added);
    const auto found = Manifest(folder / ".", repository).find("added");
    assert(found && found->file == added.file && found->modified == added.modified);
  });
  return 0;
}

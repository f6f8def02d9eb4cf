// Responses of the hub: the first byte selects whether the input describes a repository or lists files. Accepted ones
// must have names that stay below their folder, and valid digests.
#include "fuzz/support.h"
#include "witan/fetch/hub.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  using namespace witan::fetch;
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  fuzz::expect_own_errors([&] {
    if (data[0] % 2 == 0) {
      assert(is_digest(DigestKind::git_blob, parse_state(text, "state").commit));
      return;
    }
    for (const HubFile& file : parse_files(text, "files")) {
      assert(is_digest(file.digest.kind, file.digest.hex));
      const fs::path place = (fs::path("/fetched") / file.path).lexically_normal();
      assert(place.string().starts_with("/fetched/") && place.string().size() == file.path.size() + 9);
    }
  });
  return 0;
}

// An accepted manifest must survive writing and reading.
#include "fuzz/support.h"
#include "witan/checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  const std::string_view text = fuzz::text_of(data, size);
  const auto accept = [](std::string_view manifest) {
    const std::string written = manifest_text(parse_manifest(manifest, "manifest.json"));
    assert(manifest_text(parse_manifest(written, "manifest.json")) == written);
  };
  fuzz::expect_own_errors([&] { accept(text); });
  // Also with a valid hash, which random input never has.
  Json content;
  try {
    content = parse_json(text, "manifest.json");
  } catch (const Error&) {
    return 0;
  }
  if (content.is_object()) fuzz::expect_own_errors([&] { accept(seal(content)); });
  return 0;
}

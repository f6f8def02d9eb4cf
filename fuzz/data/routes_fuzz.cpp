// Recorded routes. The checksum is appended, so that changed bytes pass that check.
#include <cassert>
#include <string>

#include "fuzz/support.h"
#include "witan/base/hash.h"
#include "witan/data/routes/route_file.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  std::string bytes(fuzz::text_of(data, size));
  Hasher hasher;
  hasher.update(bytes.data(), bytes.size());
  const uint64_t checksum = hasher.low64();
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  fuzz::expect_own_errors([&] {
    const RouteFile file = parse_routes(bytes, "fuzz");
    const std::string again = encode_routes(file);
    assert(again.size() == bytes.size());
  });
  return 0;
}

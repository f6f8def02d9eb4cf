// A file that opens must contain its tensors.
#include "fuzz/support.h"
#include "witan/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  const fs::path path = folder.write("a.safetensors", fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] {
    const SafetensorsFile file(path);
    uint64_t bytes = 0;
    unsigned sum = 0;
    for (const auto& tensor : file.tensors()) {
      assert(file.find(tensor.info.name) == &tensor);
      assert(tensor.bytes.size() ==
             static_cast<uint64_t>(tensor.info.shape.elements()) * static_cast<uint64_t>(size_of(tensor.info.dtype)));
      bytes += tensor.bytes.size();
      for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
    }
    assert(bytes <= size && sum <= 255 * bytes);
  });
  return 0;
}

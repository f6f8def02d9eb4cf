// A GGUF file that opens must contain its tensors without overlap, with readable values for any bytes, and a vocabulary
// that gives a tokenizer or one of our errors; it must survive writing and reading.
#include <algorithm>

#include "fuzz/support.h"
#include "witan/convert/elements/block_codec.h"
#include "witan/formats/gguf.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

namespace {

void read_values(const witan::GgufFile::Placed& tensor) {
  using namespace witan;
  constexpr std::string_view kBlockTypes[] = {"Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"};
  if (std::ranges::find(kBlockTypes, tensor.info.type->name) == std::end(kBlockTypes)) return;
  const Element type = element_from_name(tensor.info.type->name, "fuzz");
  std::vector<float> values(static_cast<size_t>(tensor.info.elements()));
  copy_from_blocks(Element::f32, reinterpret_cast<std::byte*>(values.data()), type, tensor.bytes.data(), 0, 1,
                   tensor.info.elements());
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  const fs::path path = folder.write("a.gguf", fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] {
    const GgufFile file(path);
    const std::byte* end = nullptr;
    unsigned sum = 0;
    std::vector<GgufTensor> tensors;
    for (const auto& tensor : file.tensors()) {
      assert(file.find(tensor.info.name) == &tensor);
      assert(tensor.bytes.size() == tensor.info.bytes() && tensor.bytes.data() >= end);
      end = tensor.bytes.data() + tensor.bytes.size();
      for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
      tensors.push_back(tensor.info);
      read_values(tensor);
    }
    assert(sum <= 255 * size);
    std::string again = gguf_header(file.metadata(), tensors);
    for (const GgufTensor& tensor : tensors) again.append(tensor.bytes() + gguf_padding(tensor.bytes()), '\0');
    if (file.metadata().find("general.alignment") == nullptr) {
      const GgufFile second(folder.write("b.gguf", again));
      assert(second.tensors().size() == tensors.size());
      assert(second.metadata().values().size() == file.metadata().values().size());
    }
    const Tokenizer tokenizer(parse_gguf_vocabulary(file.metadata()));
    for (const int32_t id : tokenizer.encode("It's 123 o'clock", true)) assert(id >= 0 && id < tokenizer.vocab_size());
  });
  return 0;
}

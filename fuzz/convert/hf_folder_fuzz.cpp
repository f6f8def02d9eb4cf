// A Hugging Face folder (config.json, followed by model.safetensors) must give one of our errors or a model whose
// weights can all be read, also quantised ones. The first two bytes are the length of config.json.
#include <algorithm>

#include "fuzz/support.h"
#include "witan/convert/hf/hf_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  if (size < 2) return 0;
  const size_t length = std::min(size - 2, static_cast<size_t>(data[0]) | static_cast<size_t>(data[1]) << 8);
  const fs::path model = folder.write(kHfConfig, fuzz::text_of(data + 2, length)).parent_path();
  folder.write(kHfWeights, fuzz::text_of(data + 2 + length, size - 2 - length));
  fuzz::expect_own_errors([&] {
    HfWeights weights(model);
    for (const auto& [name, shape] : weights.weights()) {
      std::vector<double> values(static_cast<size_t>(shape.elements()));
      weights.read(name, 0, shape.elements(), values.data());
    }
  });
  return 0;
}

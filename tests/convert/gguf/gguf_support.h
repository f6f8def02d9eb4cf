// GGUF files of tiny models, made by llama.cpp's converter (tests/golden/gguf), and exports of golden folders.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "convert/convert_support.h"
#include "support/temp_folder.h"
#include "witan/checkpoint/store.h"
#include "witan/convert/gguf/gguf_export.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"

namespace witan::testing {

inline fs::path golden_gguf(const std::string& model) {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/gguf" / (model + ".gguf");
}

inline std::vector<double> values_of(WeightSource& source, const std::string& name, const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  source.read(name, 0, shape.elements(), values.data());
  return values;
}

using Bytes = std::map<std::string, std::pair<std::string, std::string>>;  // type and bytes of each tensor

inline Bytes tensors_of_file(const fs::path& path) {
  const GgufFile file(path);
  Bytes all;
  for (const auto& tensor : file.tensors())
    all[tensor.info.name] = {std::string(tensor.info.type->name),
                             {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}};
  return all;
}

class GgufFiles : public ::testing::Test {
 protected:
  // A checkpoint of the golden Hugging Face folder.
  CheckpointWeights from_hf(const std::string& model, Ledger* ledger = nullptr) {
    HfWeights weights(golden(model));
    return imported(weights, ledger);
  }
  CheckpointWeights imported(ForeignWeights& weights, Ledger* ledger = nullptr) {
    const fs::path folder = folder_ / ("checkpoints" + std::to_string(++imports_));
    Ledger made = import_weights(weights, folder, {}, Json::object()).ledger;
    if (ledger) *ledger = std::move(made);
    return {open_checkpoint(folder / "step-0"), weights.model()};
  }
  fs::path exported(CheckpointWeights& weights, const GgufExport& how, const std::string& name = "out.gguf") {
    export_gguf(weights, how, folder_ / name);
    return folder_ / name;
  }

  test::TempFolder folder_;
  int imports_ = 0;
};

}  // namespace witan::testing

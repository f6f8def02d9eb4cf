// Helpers for folders of tiny models created by transformers (tests/golden/convert/make_golden.py).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/temp_folder.h"
#include "witan/base/files/file.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/models/architecture.h"

namespace witan::testing {

inline fs::path golden(const std::string& model) {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/convert" / model;
}

// The golden folders by name, or those in a folder beside them as `beside/NAME`: new ones are tested without being
// listed.
inline std::vector<std::string> golden_models(const fs::path& beside = {}) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden(beside.string())))
    if (entry.is_directory()) names.push_back((beside / entry.path().filename()).string());
  std::ranges::sort(names);
  return names;
}

// These names and the model types of all architectures.
inline std::vector<std::string> architecture_names(std::vector<std::string> more = {}) {
  for (const Architecture& one : architectures()) more.emplace_back(one.model_type);
  return more;
}

// A tensor that owns its bytes.
struct OwnTensor {
  StoredTensor info;
  std::vector<std::byte> bytes;
  bool operator==(const OwnTensor& other) const {
    return info.dtype == other.info.dtype && info.shape == other.info.shape && bytes == other.bytes;
  }
};
using OwnTensors = std::map<std::string, OwnTensor>;

// The tensors of a folder, or of one file.
inline OwnTensors tensors_in(const fs::path& path) {
  OwnTensors all;
  const auto add = [&](const PlacedTensor& tensor) {
    all[tensor.info.name] = {tensor.info, {tensor.bytes.begin(), tensor.bytes.end()}};
  };
  if (fs::is_directory(path)) {
    const HfFolder folder(path);
    for (const auto& [name, tensor] : folder.tensors()) add(tensor);
    return all;
  }
  const MappedFile file(path);
  std::map<std::string, std::string> metadata;
  for (const PlacedTensor& tensor : parse_safetensors(file.bytes(), path.string(), stored_element_bytes, metadata))
    add(tensor);
  return all;
}

inline void write_tensors(const fs::path& path, const OwnTensors& tensors) {
  std::vector<StoredTensor> order;
  for (const auto& [name, tensor] : tensors) {
    order.push_back(tensor.info);
    order.back().name = name;
    order.back().bytes = tensor.bytes.size();
  }
  StoredWriter writer(path, order);
  for (const auto& [name, tensor] : tensors) writer.write(tensor.bytes.data(), tensor.bytes.size());
  writer.finish();
}

inline void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A folder with the model's config.json and these weights.
inline void write_model(const fs::path& folder, const std::string& model, const OwnTensors& tensors) {
  fs::create_directories(folder);
  fs::copy_file(golden(model) / kHfConfig, folder / kHfConfig, fs::copy_options::overwrite_existing);
  write_tensors(folder / kHfWeights, tensors);
}

}  // namespace witan::testing

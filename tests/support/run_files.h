// What TensorBoard's event files contain.
#pragma once

#include <cstddef>
#include <string>

#include "witan/base/files/file.h"

namespace witan::test {

// The bytes of all files of `folder`.
inline std::string event_bytes(const fs::path& folder) {
  std::string bytes;
  for (const auto& file : fs::directory_iterator(folder)) bytes += read_file(file.path());
  return bytes;
}

inline size_t count(const std::string& bytes, const std::string& text) {
  size_t found = 0;
  for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) ++found;
  return found;
}

}  // namespace witan::test

// Caches arrays in a file: maps the file if it is there and whole, else computes and writes it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::megatron {

// A file of arrays: 64 bytes of header (magic, version, number of arrays, XXH3-64 of all that follows), the key that
// says what they were made from, the bytes of each array, and the arrays, each at a multiple of 64 bytes.
class IndexFile {
 public:
  // FOLDER/NAME-(hash of the key).index. If it is not there, has another key or does not have its hash, `build` gives
  // the arrays, and the file is written, whole or not at all; processes that do so at once write the same. Throws
  // IoError, with the way out, where the folder cannot be written.
  using Arrays = std::vector<std::vector<std::byte>>;
  IndexFile(const fs::path& folder, const std::string& name, const std::string& key,
            const std::function<Arrays()>& build);

  template <class T>
  std::span<const T> array(size_t i) const {
    return {reinterpret_cast<const T*>(arrays_.at(i).data()), arrays_.at(i).size() / sizeof(T)};
  }
  const fs::path& path() const { return path_; }

 private:
  bool open(const std::string& key);

  fs::path path_;
  MappedFile file_;
  std::vector<std::span<const std::byte>> arrays_;
};

// The bytes of a vector of numbers.
template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

}  // namespace witan::megatron

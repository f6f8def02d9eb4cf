// Helpers of the fuzz targets. A target is a function of untrusted bytes that must end with a result or one of Witan's
// errors. Anything else is a finding: another exception, a signal, a sanitizer report, a failed assert.
#pragma once

#include <unistd.h>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace witan::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs `parse`; its errors must be ours, with a message.
template <class Parse>
void expect_own_errors(const Parse& parse) {
  try {
    parse();
  } catch (const Error& error) {
    assert(error.what()[0] != '\0');
  }
}

// Files in memory, for parsers that map what they read. One process, one folder; removed at the end.
class Folder {
 public:
  Folder() : path_(fs::path("/dev/shm") / ("witan-fuzz-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  fs::path write(const char* name, std::string_view bytes) const {
    const fs::path path = path_ / name;
    std::FILE* file = std::fopen(path.c_str(), "wb");
    assert(file);
    [[maybe_unused]] const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), file);
    assert(written == bytes.size());
    std::fclose(file);
    return path;
  }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Reads every document of a TokenDataset.
template <class Dataset>
void read_everywhere(const Dataset& dataset) {
  int64_t tokens = 0;
  for (int64_t document = 0; document < dataset.documents(); ++document) {
    std::vector<int32_t> ids(static_cast<size_t>(dataset.length(document)));
    dataset.read(document, 0, ids);
    tokens += dataset.length(document);
  }
  assert(tokens == dataset.tokens());
}

}  // namespace witan::fuzz

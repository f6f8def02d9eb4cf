// A file whose bytes are in memory.
#pragma once

#include <string>
#include <utility>

#include "witan/data/text/decompress.h"

namespace witan::test {

class BytesInMemory final : public ByteReader {
 public:
  explicit BytesInMemory(std::string bytes) : bytes_(std::move(bytes)) {}

  size_t read(char* out, size_t bytes) override {
    const size_t n = bytes_.copy(out, bytes, at_);
    at_ += n;
    return n;
  }
  uint64_t offset() const override { return at_; }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

}  // namespace witan::test

// Memory that was freed, and that the C allocator keeps for later, as blocks below one that is still in use.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "witan/base/process.h"

namespace witan::test {

class FreedMemory {
 public:
  FreedMemory() : before_(read_resident()->now) {
    std::vector<std::unique_ptr<char[]>> blocks;
    for (size_t bytes = 0; bytes < kBytes; bytes += kBlock) {
      blocks.push_back(std::make_unique<char[]>(kBlock));
      std::memset(blocks.back().get(), 1, kBlock);
    }
    last_ = std::move(blocks.back());  // else the end of the heap would be given back at once
  }
  // Whether most of it is resident. Sanitizers have allocators of their own, which may give it back at once.
  bool is_kept() const { return read_resident()->now > before_ + kBytes / 2; }

  static constexpr size_t kBytes = 64 << 20;

 private:
  static constexpr size_t kBlock = 64 << 10;  // of which malloc makes no mapping each
  uint64_t before_;
  std::unique_ptr<char[]> last_;
};

}  // namespace witan::test

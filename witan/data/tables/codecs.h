// Blocks that were compressed whole, with their size known: pages of Parquet, buffers of Arrow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace witan::tables {

enum class Codec : uint8_t { none, snappy, gzip, zstd, lz4_block, lz4_frame };

// Not thread-safe: keeps the contexts and the memory of the last block.
class Decompressor {
 public:
  Decompressor();
  ~Decompressor();

  // The block as it was, of `bytes` bytes; valid until the next call, and as long as `block`. Throws Damaged, also for
  // another size, and before memory is allocated if no block of this size can become so large.
  std::string_view run(Codec codec, std::string_view block, uint64_t bytes);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
  std::unique_ptr<char[]> out_;
  uint64_t capacity_ = 0;
};

}  // namespace witan::tables

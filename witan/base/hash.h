// Content hashes of files and states: XXH3-128 (xxHash 0.8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace witan {

// Incremental XXH3-128; the hex digest is 32 lower-case digits, high half first.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  void update(const void* data, size_t bytes);
  std::string hex() const;
  uint64_t low64() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(const void* data, size_t bytes);

// XXH3-64, at once.
uint64_t hash64(const void* data, size_t bytes);

}  // namespace witan

// Proof of a shared secret: HMAC-SHA-256 (RFC 2104, FIPS 180-4). For files and states there is hash.h, which is faster
// and proves nothing against an adversary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace witan {

using Digest256 = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void update(std::span<const uint8_t> bytes);
  Digest256 finish();  // the object is used up

 private:
  static constexpr size_t kBlock = 64;
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, kBlock> pending_{};
  uint64_t bytes_ = 0;  // seen so far
};

Digest256 hmac_sha256(std::string_view key, std::span<const uint8_t> message);

// Compares in a time that does not tell where they differ.
bool same_digest(const Digest256& a, const Digest256& b);

// Numbers that nobody can guess, from the system. Throws DeviceError when there are none to be had.
void fill_random(std::span<uint8_t> bytes);

}  // namespace witan

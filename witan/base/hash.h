// Content hashes of files and states, XXH3-128 (xxHash 0.8), and proofs of a shared secret, HMAC-SHA-256.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace witan {

// Incremental XXH3-128; the hex digest is 32 lower-case digits, high half first.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  void update(const void* data, size_t bytes);
  // The digest of all bytes so far, whole or its lower half.
  std::string hex() const;
  uint64_t low64() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Hasher::hex() of the bytes.
std::string hash_hex(const void* data, size_t bytes);

// XXH3-64 of the bytes.
uint64_t hash64(const void* data, size_t bytes);

// HMAC-SHA-256 (RFC 2104, FIPS 180-4) and random numbers for it come from OpenSSL's libcrypto. Hasher is faster but
// proves nothing against an adversary.
using Digest256 = std::array<uint8_t, 32>;

// Throws DeviceError when the library fails, as one does that is configured to refuse the algorithm.
Digest256 hmac_sha256(std::string_view key, std::span<const uint8_t> message);

// Compares in a time that does not depend on where the digests differ.
bool same_digest(const Digest256& a, const Digest256& b);

// Fills `bytes` with cryptographically secure random numbers. Throws DeviceError when there are none to be had.
void fill_random(std::span<uint8_t> bytes);

}  // namespace witan

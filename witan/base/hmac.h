// Proof of a shared secret: HMAC-SHA-256 (RFC 2104, FIPS 180-4) and random numbers for it, all from OpenSSL's
// libcrypto. For files and states there is hash.h, which is faster and proves nothing against an adversary.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace witan {

using Digest256 = std::array<uint8_t, 32>;

// Throws DeviceError when the library fails, as one does that is configured to refuse the algorithm.
Digest256 hmac_sha256(std::string_view key, std::span<const uint8_t> message);

// Compares in a time that does not tell where they differ.
bool same_digest(const Digest256& a, const Digest256& b);

// Fills `bytes` with cryptographically secure random numbers. Throws DeviceError when there are none to be had.
void fill_random(std::span<uint8_t> bytes);

}  // namespace witan

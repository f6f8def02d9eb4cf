#include "witan/base/hash.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <xxhash.h>

#include <cstdio>
#include <new>
#include <string>

#include "witan/base/error.h"

namespace witan {

struct Hasher::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  if (!state_->xxh3) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh3);
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;

void Hasher::update(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(state_->xxh3, data, bytes);
}

std::string Hasher::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_->xxh3);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(digest.high64),
                static_cast<unsigned long long>(digest.low64));
  return text;
}

uint64_t Hasher::low64() const {
  return XXH3_128bits_digest(state_->xxh3).low64;
}

std::string hash_hex(const void* data, size_t bytes) {
  Hasher hasher;
  hasher.update(data, bytes);
  return hasher.hex();
}

uint64_t hash64(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

namespace {

std::string last_error() {
  const char* reason = ERR_reason_error_string(ERR_get_error());
  return reason != nullptr ? reason : "no reason is given";
}

}  // namespace

Digest256 hmac_sha256(std::string_view key, std::span<const uint8_t> message) {
  Digest256 digest;
  unsigned bytes = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(), message.size(),
                          digest.data(), &bytes);
  require<DeviceError>(made != nullptr && bytes == digest.size(),
                       "libcrypto cannot compute HMAC-SHA-256: ", last_error());
  return digest;
}

bool same_digest(const Digest256& a, const Digest256& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<uint8_t> bytes) {
  require<DeviceError>(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1,
                       "libcrypto has no random numbers: ", last_error());
}

}  // namespace witan

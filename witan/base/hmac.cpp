#include "witan/base/hmac.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <string>

#include "witan/base/error.h"

namespace witan {
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

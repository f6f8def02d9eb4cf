#include "witan/serve/secret.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <sys/random.h>

#include "witan/base/error.h"

namespace witan::serve {

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string new_secret() {
  unsigned char bytes[16];
  require<IoError>(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "the system gives no random numbers");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace witan::serve

#include "witan/fetch/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

#include "witan/base/error.h"

namespace witan::fetch {

struct DigestStream::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

bool is_digest(DigestKind kind, std::string_view hex) {
  return hex.size() == (kind == DigestKind::sha256 ? 64 : 40) &&
         hex.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

DigestStream::DigestStream(DigestKind kind, uint64_t size) : kind_(kind), state_(std::make_unique<State>()) {
  const EVP_MD* algorithm = kind == DigestKind::sha256 ? EVP_sha256() : EVP_sha1();
  require<DeviceError>(state_->context != nullptr && EVP_DigestInit_ex(state_->context, algorithm, nullptr) == 1,
                       "libcrypto does not compute ", kind == DigestKind::sha256 ? "SHA-256" : "SHA-1");
  if (kind == DigestKind::git_blob) update(cat("blob ", size, '\0'));
}

DigestStream::~DigestStream() = default;

void DigestStream::update(std::string_view bytes) {
  require<DeviceError>(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1,
                       "libcrypto cannot continue a digest");
}

Digest DigestStream::finish() {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned count = 0;
  require<DeviceError>(EVP_DigestFinal_ex(state_->context, bytes.data(), &count) == 1,
                       "libcrypto cannot finish a digest");
  std::string hex;
  for (unsigned i = 0; i < count; ++i) hex += {kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]};
  return {kind_, hex};
}

Digest digest_of_file(const fs::path& path, DigestKind kind) {
  constexpr size_t kBytes = 1 << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  require<IoError>(file.good(), "cannot read ", path.string());
  DigestStream digest(kind, static_cast<uint64_t>(file.tellg()));
  file.seekg(0);
  std::vector<char> buffer(kBytes);
  while (file.read(buffer.data(), static_cast<std::streamsize>(kBytes)) || file.gcount() > 0)
    digest.update({buffer.data(), static_cast<size_t>(file.gcount())});
  require<IoError>(file.eof(), "cannot read ", path.string());
  return digest.finish();
}

}  // namespace witan::fetch

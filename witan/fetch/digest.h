// Digests of files as the hub lists them: SHA-256 for large files (Git LFS), the Git blob name for others, which is the
// SHA-1 of "blob SIZE\0" and the content (git-scm.com/book/en/v2/Git-Internals-Git-Objects).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "witan/base/files/file.h"

namespace witan::fetch {

enum class DigestKind : uint8_t { sha256, git_blob };

struct Digest {
  DigestKind kind = DigestKind::sha256;
  std::string hex;  // lower case: 64 digits, or 40
  bool operator==(const Digest&) const = default;
};

// Whether `hex` has the form of a digest of this kind.
bool is_digest(DigestKind kind, std::string_view hex);

// Computes a digest incrementally. Throws DeviceError if libcrypto refuses the algorithm.
class DigestStream {
 public:
  DigestStream(DigestKind kind, uint64_t size);
  ~DigestStream();
  void update(std::string_view bytes);
  Digest finish();

 private:
  struct State;
  DigestKind kind_;
  std::unique_ptr<State> state_;
};

// The digest of an existing file. Throws IoError.
Digest digest_of_file(const fs::path& path, DigestKind kind);

}  // namespace witan::fetch

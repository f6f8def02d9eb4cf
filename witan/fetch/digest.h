// What the hub lists of a file's content: SHA-256 of large files (Git LFS), the name of a Git blob of the others, which
// is SHA-1 of "blob SIZE\0" and the content (git-scm.com/book/en/v2/Git-Internals-Git-Objects).
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

// Whether `hex` can be a digest of this kind.
bool is_digest(DigestKind kind, std::string_view hex);

// Computes a digest as content comes. Throws DeviceError when libcrypto refuses the algorithm.
class DigestOf {
 public:
  DigestOf(DigestKind kind, uint64_t size);
  ~DigestOf();
  void update(std::string_view bytes);
  Digest finish();

 private:
  struct State;
  DigestKind kind_;
  std::unique_ptr<State> state_;
};

// Of a file that is there. Throws IoError.
Digest digest_of_file(const fs::path& path, DigestKind kind);

}  // namespace witan::fetch

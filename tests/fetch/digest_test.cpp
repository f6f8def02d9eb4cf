#include "witan/fetch/digest.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan::fetch {
namespace {

Digest digest_of(DigestKind kind, const std::string& text) {
  DigestStream digest(kind, text.size());
  digest.update(text.substr(0, text.size() / 2));
  digest.update(text.substr(text.size() / 2));
  return digest.finish();
}

// FIPS 180-4's example, and the output of `git hash-object`.
TEST(Digests, MatchKnownValues) {
  EXPECT_EQ(digest_of(DigestKind::sha256, "abc").hex,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of(DigestKind::sha256, "").hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of(DigestKind::git_blob, "hello\n").hex, "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(digest_of(DigestKind::git_blob, "").hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

TEST(Digests, OfFilesMatchThoseOfTheirBytes) {
  const test::TempFolder folder;
  for (const size_t size : {0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1}) {
    const std::string bytes(size, 'x');
    write_file_atomically(folder / "file", bytes);
    for (const DigestKind kind : {DigestKind::sha256, DigestKind::git_blob})
      EXPECT_EQ(digest_of_file(folder / "file", kind), digest_of(kind, bytes)) << size;
  }
  EXPECT_THROW(digest_of_file(folder / "none", DigestKind::sha256), IoError);
}

TEST(Digests, AreRecognizedByLengthAndDigits) {
  EXPECT_TRUE(is_digest(DigestKind::git_blob, std::string(40, 'a')));
  EXPECT_FALSE(is_digest(DigestKind::git_blob, std::string(40, 'A')));
  EXPECT_FALSE(is_digest(DigestKind::sha256, std::string(40, 'a')));
  EXPECT_FALSE(is_digest(DigestKind::sha256, cat(std::string(63, '0'), "/")));
}

}  // namespace
}  // namespace witan::fetch

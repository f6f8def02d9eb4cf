#include "witan/base/files/growing_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;

TEST(GrowingFile, IsCutBackToWhatWasWhole) {
  const TempFolder folder;
  const fs::path path = folder / "file";
  {
    GrowingFile file(path, 0);
    file.append("first\n");
    file.append(std::string(1 << 19, 'x'));
    file.append("torn");
    file.sync();
    EXPECT_EQ(file.size(), 6U + (1 << 19) + 4);
    file.append("lost");
  }
  EXPECT_EQ(fs::file_size(path), 6U + (1 << 19) + 4) << "what was not handed over is dropped";
  {
    GrowingFile file(path, 6);
    file.append("second\n");
    file.sync();
  }
  EXPECT_EQ(read_file(path), "first\nsecond\n");
}

TEST(GrowingFile, NamesAFileThatLostBytes) {
  const TempFolder folder;
  write_file_atomically(folder / "file", "abc");
  EXPECT_THAT(message_of<CorruptionError>([&] { const GrowingFile file(folder / "file", 4); }),
              ::testing::HasSubstr("file has 3 bytes, and 4 were written"));
}

TEST(GrowingFile, FollowsNoLink) {
  const TempFolder folder;
  write_file_atomically(folder / "elsewhere", "abc");
  fs::create_symlink("elsewhere", folder / "link");
  EXPECT_THAT(message_of<IoError>([&] { const GrowingFile file(folder / "link", 0); }),
              ::testing::HasSubstr("link: it is a link, and what is recorded stays in its folder; remove the link"));
  EXPECT_EQ(read_file(folder / "elsewhere"), "abc");
}

}  // namespace
}  // namespace witan

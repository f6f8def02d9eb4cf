#include "witan/base/files/growing_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;

TEST(AppendFile, AppendsToNewAndExistingFiles) {
  const TempFolder folder;
  const fs::path path = folder / "records";
  {
    AppendFile file(path);
    file.append("one\n");
    EXPECT_EQ(read_file(path), "one\n");  // nothing is buffered
    file.append("");
    EXPECT_EQ(file.size(), 4u);
  }
  AppendFile again(path);
  EXPECT_EQ(again.size(), 4u);
  again.append("two\n");
  EXPECT_EQ(read_file(path), "one\ntwo\n");
}

TEST(AppendFile, ErrorsNameTheReason) {
  const TempFolder folder;
  EXPECT_NE(message_of<IoError>([&] { AppendFile(folder / "nowhere" / "x"); }).find("cannot open"), std::string::npos);
  AppendFile full("/dev/full");
  EXPECT_EQ(message_of<DiskFullError>([&] { full.append("x"); }),
            "cannot append to /dev/full: the disk is full; free some space and run the same command again");
}

TEST(AppendFile, FollowsNoLinkAndWaitsForNoReader) {
  const TempFolder folder;
  std::ofstream(folder / "outside") << "kept";
  fs::create_symlink(folder / "outside", folder / "link");
  EXPECT_NE(message_of<IoError>([&] { AppendFile file(folder / "link"); }).find("link: it is a link"),
            std::string::npos);
  fs::create_symlink(folder / "absent", folder / "dangling");
  EXPECT_NE(message_of<IoError>([&] { AppendFile file(folder / "dangling"); }).find("it is a link"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "absent"));
  EXPECT_EQ(read_file(folder / "outside"), "kept");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of<IoError>([&] { AppendFile file(folder / "pipe"); }).find("pipe: it is a pipe"),
            std::string::npos);
}

using test::message_of;
using test::TempFolder;

TEST(GrowingFile, TruncatesToTheLastWholeRecord) {
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
  EXPECT_EQ(fs::file_size(path), 6U + (1 << 19) + 4) << "data that was not synced is dropped";
  {
    GrowingFile file(path, 6);
    file.append("second\n");
    file.sync();
  }
  EXPECT_EQ(read_file(path), "first\nsecond\n");
}

TEST(GrowingFile, RefusesFilesThatLostBytes) {
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

#include "witan/base/files/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "support/flushed.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using testing::HasSubstr;

int entries(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ReadFile, ReturnsEveryByte) {
  const test::TempFolder folder;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65535}, size_t{65536}, size_t{65537}, size_t{3} << 20}) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7);
    write_file_atomically(folder / "f", text);
    EXPECT_EQ(read_file(folder / "f"), text) << bytes;
  }
}

// The data is flushed before the rename, so a crash leaves either the old file or the new one.
TEST(WriteFileAtomically, FlushesTheBytesAndThenTheName) {
  const test::TempFolder folder;
  test::flushed.clear();
  write_file_atomically(folder / "f", "12345");
  ASSERT_EQ(test::flushed.size(), 2u);
  EXPECT_EQ(test::flushed[0].path.parent_path(), folder.path());
  EXPECT_NE(test::flushed[0].path, folder / "f");
  EXPECT_EQ(test::flushed[0].bytes, 5u);
  EXPECT_EQ(test::flushed[1].path, folder.path());
  EXPECT_EQ(test::flushed[1].names, std::vector<std::string>{"f"});
  // Only the data, since the folder is flushed later.
  write_file_atomically(folder / "g", "123", NameFlush::later);
  ASSERT_EQ(test::flushed.size(), 3u);
  EXPECT_EQ(test::flushed[2].bytes, 3u);
}

// Files under /proc report size 0.
TEST(ReadFile, ReadsFilesOfUnknownSize) {
  EXPECT_NE(read_file("/proc/self/status").find("Pid:"), std::string::npos);
}

TEST(ReadFile, RefusesFilesOverTheLimit) {
  const test::TempFolder folder;
  write_file_atomically(folder / "f", "12345");
  EXPECT_EQ(read_file(folder / "f", 5), "12345");
  const auto path = (folder / "f").string();
  EXPECT_EQ(message_of<IoError>([&] { read_file(path, 4); }),
            "cannot read " + path + ": larger than the limit of 4 bytes");
}

// The limit is checked before memory is taken: this file claims a terabyte.
TEST(ReadFile, RefusesAHugeSparseFileAtOnce) {
  const test::TempFolder folder;
  const auto path = folder / "sparse";
  std::ofstream(path) << "x";
  if (::truncate(path.c_str(), off_t{1} << 40) != 0) GTEST_SKIP() << "this file system holds no sparse terabyte";
  EXPECT_THAT(message_of<IoError>([&] { read_file(path, 1 << 20); }), HasSubstr("larger than the limit"));
}

TEST(ReadFile, ErrorsNameFileAndReason) {
  const test::TempFolder folder;
  EXPECT_EQ(message_of<IoError>([&] { read_file(folder / "none"); }),
            "cannot open " + (folder / "none").string() + ": No such file or directory");
  EXPECT_EQ(message_of<IoError>([&] { read_file(folder.path()); }),
            "cannot read " + folder.path().string() + ": it is a folder");
}

// Opening the pipe would wait for a writer, which may never come.
TEST(ReadFile, RefusesNamedPipesAndReadsInheritedOnes) {
  const test::TempFolder folder;
  const fs::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, folder / "link");
  fs::create_symlink("/dev/zero", folder / "endless");
  for (const char* name : {"pipe", "link", "endless"})
    EXPECT_EQ(message_of<IoError>([&] { read_file(folder / name); }),
              "cannot read " + (folder / name).string() +
                  ": it is a pipe or a device, not a regular file; put a file in its place");
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  std::thread writer([&] {
    EXPECT_EQ(::write(ends[1], "passed", 6), 6);
    ::close(ends[1]);
  });
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), "passed");
  writer.join();
  ::close(ends[0]);
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const test::TempFolder folder;
  AtomicFile file(folder / "f");
  file.write("half");
  EXPECT_FALSE(fs::exists(folder / "f"));
  file.write(" and half");
  EXPECT_EQ(file.written(), 13u);
  file.commit();
  EXPECT_EQ(read_file(folder / "f"), "half and half");
  EXPECT_EQ(entries(folder.path()), 1);
}

TEST(AtomicFile, LeavesTheOldFileWhenDropped) {
  const test::TempFolder folder;
  write_file_atomically(folder / "f", "old");
  {
    AtomicFile file(folder / "f");
    file.write(std::string(3 << 20, 'x'));  // larger than the buffer, so that bytes are on disk
    EXPECT_EQ(entries(folder.path()), 2);
  }
  EXPECT_EQ(read_file(folder / "f"), "old");
  EXPECT_EQ(entries(folder.path()), 1);
}

TEST(AtomicFile, KeepsTheOrderOfSmallAndLargeWrites) {
  const test::TempFolder folder;
  AtomicFile file(folder / "f");
  std::string expected;
  for (const size_t bytes : {size_t{3}, size_t{1} << 20, size_t{0}, size_t{5}, (size_t{1} << 20) - 1, size_t{7}}) {
    const std::string piece(bytes, static_cast<char>('a' + expected.size() % 26));
    file.write(piece);
    expected += piece;
  }
  file.commit();
  EXPECT_EQ(read_file(folder / "f"), expected);
  EXPECT_EQ(file.written(), expected.size());
}

TEST(AtomicFile, KeepsTwoWritersOfOnePathApart) {
  const test::TempFolder folder;
  AtomicFile first(folder / "f"), second(folder / "f");
  first.write("first");
  second.write("second");
  second.commit();
  first.commit();
  EXPECT_EQ(read_file(folder / "f"), "first");
}

// A killed process leaves its temporary file; in containers, the next one may well have the same process id.
TEST(AtomicFile, IgnoresLeftoverTemporaryFiles) {
  const test::TempFolder folder;
  for (unsigned serial = 0; serial < 2000; ++serial)
    std::ofstream(folder / cat(".tmp-f.", ::getpid(), ".", serial)) << "stale";
  write_file_atomically(folder / "f", "fresh");
  EXPECT_EQ(read_file(folder / "f"), "fresh");
}

TEST(AtomicFile, RefusesMissingFolders) {
  const test::TempFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder.path() / "none" / "f"); }),
              testing::AllOf(HasSubstr("cannot create"), HasSubstr("none"), HasSubstr("No such file or directory")));
  EXPECT_THAT(message_of<IoError>([&] { AtomicFile file(folder.path() / "none" / "f"); }),
              HasSubstr("cannot create " + (folder.path() / "none/f").string() + ": "))
      << "the name that its user knows";
}

TEST(AtomicFile, LeavesNoTemporaryWhenRenamingFails) {
  const test::TempFolder folder;
  fs::create_directory(folder / "f");
  AtomicFile file(folder / "f");
  file.write("text");
  EXPECT_THAT(message_of<IoError>([&] { file.commit(); }),
              testing::AllOf(HasSubstr("cannot finish"), HasSubstr((folder / "f").string())));
  EXPECT_EQ(entries(folder.path()), 1);
}

TEST(AtomicFile, LeavesNoTemporaryAtTheFileSizeLimit) {
  const test::TempFolder folder;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto message = message_of<IoError>([&] { write_file_atomically(folder / "f", std::string(3 << 20, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, testing::AllOf(HasSubstr("cannot write"), HasSubstr("File too large")));
  EXPECT_EQ(entries(folder.path()), 0);
}

// A 64 KiB file system, where this process may mount one.
class TinyDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=64k") != 0)
      GTEST_SKIP() << "cannot mount a file system, so the full disk is not tested";
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  test::TempFolder folder_;
  bool mounted_ = false;
};

TEST_F(TinyDisk, AFullDiskKeepsTheOldFileAndLeavesNoTemporary) {
  write_file_atomically(folder_ / "f", "old");
  EXPECT_LE(free_disk_bytes(folder_.path()), 64u << 10);
  const auto message =
      message_of<DiskFullError>([&] { write_file_atomically(folder_ / "f", std::string(1 << 18, 'x')); });
  EXPECT_THAT(message, testing::AllOf(HasSubstr("the disk is full"), HasSubstr(folder_.path().string())));
  EXPECT_EQ(read_file(folder_ / "f"), "old");
  EXPECT_EQ(entries(folder_.path()), 1);
}

TEST(MappedFile, MapsTheBytes) {
  const test::TempFolder folder;
  write_file_atomically(folder / "f", "mapped");
  const MappedFile file(folder / "f");
  EXPECT_EQ(file.text(), "mapped");
  EXPECT_EQ(file.bytes().size(), 6u);
  EXPECT_EQ(file.path(), folder / "f");
}

TEST(MappedFile, MapsEmptyFilesToEmptySpans) {
  const test::TempFolder folder;
  write_file_atomically(folder / "f", "");
  EXPECT_TRUE(MappedFile(folder / "f").bytes().empty());
  EXPECT_EQ(MappedFile(folder / "f").text(), "");
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST(MappedFile, CanBeMoved) {
  const test::TempFolder folder;
  write_file_atomically(folder / "a", "first");
  write_file_atomically(folder / "b", "second");
  MappedFile a(folder / "a"), b(folder / "b");
  a = std::move(b);
  EXPECT_EQ(a.text(), "second");
  const MappedFile c = std::move(a);
  EXPECT_EQ(c.text(), "second");
}

// The mapping stays valid when another process replaces the file.
TEST(MappedFile, SurvivesReplacementOfTheFile) {
  const test::TempFolder folder;
  write_file_atomically(folder / "f", "before");
  const MappedFile file(folder / "f");
  write_file_atomically(folder / "f", "after");
  EXPECT_EQ(file.text(), "before");
}

TEST(MappedFile, RefusesPathsThatAreNotFiles) {
  const test::TempFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { MappedFile file(folder / "none"); }), HasSubstr("No such file or directory"));
  EXPECT_THAT(message_of<IoError>([&] { MappedFile file(folder.path()); }), HasSubstr("it is not a regular file"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { MappedFile file(folder / "pipe"); }), HasSubstr("it is not a regular file"));
}

TEST(FreeDiskBytes, ReturnsBytesOrThrows) {
  const test::TempFolder folder;
  EXPECT_GT(free_disk_bytes(folder.path()), 0u);
  EXPECT_EQ(free_disk_bytes("") > 0, free_disk_bytes(".") > 0);
  EXPECT_THAT(message_of<IoError>([&] { free_disk_bytes(folder / "none"); }), HasSubstr("free space"));
}

TEST(FsyncFolder, ErrorsNameTheFolder) {
  const test::TempFolder folder;
  EXPECT_NO_THROW(fsync_folder(folder.path()));
  EXPECT_NO_THROW(fsync_folder(""));
  EXPECT_THAT(message_of<IoError>([&] { fsync_folder(folder / "none"); }), HasSubstr("none"));
}

TEST(IoError, FullDisksHaveTheirOwnExitCode) {
  for (const int error : {ENOSPC, EDQUOT})
    EXPECT_EQ(test::message_of<DiskFullError>([&] { throw_io_error("cannot write", "a/b", error); }),
              "cannot write a/b: the disk is full; free some space and run the same command again");
  EXPECT_EQ(test::message_of<IoError>([] { throw_io_error("cannot open", "a/b", EACCES); }),
            "cannot open a/b: Permission denied");
}

TEST(Durable, CreatesMissingFolders) {
  const test::TempFolder folder;
  const fs::path deep = folder / "a" / "b" / "c";
  create_folders(deep);
  EXPECT_TRUE(fs::is_directory(deep));
  create_folders(deep);
  create_folders("");
}

TEST(Durable, ErrorsNameTheFolder) {
  const test::TempFolder folder;
  std::ofstream(folder / "file") << "in the way";
  try {
    create_folders(folder / "file" / "below");
    FAIL() << "a file is no folder";
  } catch (const IoError& e) {
    EXPECT_NE(std::string(e.what()).find("cannot create the folder " + (folder / "file").string()), std::string::npos)
        << e.what();
  }
}

TEST(Durable, FlushesFilesWrittenByOthers) {
  const test::TempFolder folder;
  std::ofstream(folder / "file") << "text";
  fsync_file(folder / "file");
  EXPECT_THROW(fsync_file(folder / "none"), IoError);
}

}  // namespace
}  // namespace witan

#include "witan/base/files/durable.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

TEST(Durable, CreatesFoldersThatAreMissing) {
  const test::TempFolder folder;
  const fs::path deep = folder / "a" / "b" / "c";
  create_folders(deep);
  EXPECT_TRUE(fs::is_directory(deep));
  create_folders(deep);
  create_folders("");
}

TEST(Durable, SaysWhereAFolderCannotBe) {
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

TEST(Durable, FlushesAFileThatOthersWrite) {
  const test::TempFolder folder;
  std::ofstream(folder / "file") << "text";
  fsync_file(folder / "file");
  EXPECT_THROW(fsync_file(folder / "none"), IoError);
}

}  // namespace
}  // namespace witan

#include "witan/data/foreign_output.h"

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

TEST(ForeignOutput, WhatIsThereIsRefused) {
  const TempFolder folder;
  EXPECT_NO_THROW(refuse_existing(folder / "free"));
  put(folder / "taken", "");
  fs::create_directories(folder / "folder");
  fs::create_symlink("nowhere", folder / "link");
  for (const char* name : {"taken", "folder", "link"})
    EXPECT_EQ(
        message_of<ConfigError>([&] { refuse_existing(folder / name, "--to"); }),
        (folder / name).string() + " exists already, and this command would make it: remove it, or give another --to");
}

}  // namespace
}  // namespace witan

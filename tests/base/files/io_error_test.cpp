#include "witan/base/files/io_error.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

TEST(IoError, ADiskThatIsFullHasAnExitCodeOfItsOwn) {
  for (const int error : {ENOSPC, EDQUOT})
    EXPECT_EQ(test::message_of<DiskFullError>([&] { throw_io_error("cannot write", "a/b", error); }),
              "cannot write a/b: the disk is full; free some space and run the same command again");
  EXPECT_EQ(test::message_of<IoError>([] { throw_io_error("cannot open", "a/b", EACCES); }),
            "cannot open a/b: Permission denied");
}

}  // namespace
}  // namespace witan

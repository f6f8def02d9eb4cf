#include "witan/base/counted.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

TEST(Counted, OneHasNoPlural) {
  EXPECT_EQ(counted(0, "document"), "0 documents");
  EXPECT_EQ(counted(1, "document"), "1 document");
  EXPECT_EQ(counted(2, "document"), "2 documents");
}

}  // namespace
}  // namespace witan

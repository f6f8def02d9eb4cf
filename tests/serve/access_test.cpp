#include "witan/serve/access.h"

#include <gtest/gtest.h>

#include <set>

namespace witan::serve {
namespace {

TEST(Secret, IsEqualToItselfAlone) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_TRUE(same_secret("", ""));
  for (const char* other : {"", "ab", "abd", "abcd", "ABC"}) EXPECT_FALSE(same_secret("abc", other)) << other;
}

TEST(Secret, EachIsNew) {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    const std::string secret = new_secret();
    EXPECT_EQ(secret.size(), 32u);
    EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos) << secret;
    secrets.insert(secret);
  }
  EXPECT_EQ(secrets.size(), 100u);
}

}  // namespace
}  // namespace witan::serve

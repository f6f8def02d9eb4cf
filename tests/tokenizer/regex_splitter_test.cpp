#include "witan/tokenizer/regex_splitter.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <regex.h>

#include <string>

namespace witan {
namespace {

// Oniguruma's library exports functions of the same names that take another regex_t.
TEST(RegexSplitter, LeavesPosixRegularExpressionsToTheCLibrary) {
  for (void* function : {reinterpret_cast<void*>(&::regcomp), reinterpret_cast<void*>(&::regexec)}) {
    Dl_info info;
    ASSERT_NE(::dladdr(function, &info), 0);
    EXPECT_EQ(std::string(info.dli_fname).find("onig"), std::string::npos) << info.dli_fname;
  }
}

}  // namespace
}  // namespace witan

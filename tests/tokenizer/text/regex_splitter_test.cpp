#include "witan/tokenizer/text/regex_splitter.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <regex.h>

#include <string>

#include "witan/base/error.h"

namespace witan {
namespace {

// Oniguruma exports functions of the same names that take a different regex_t.
TEST(RegexSplitter, LeavesPosixRegularExpressionsToTheCLibrary) {
  for (void* function : {reinterpret_cast<void*>(&::regcomp), reinterpret_cast<void*>(&::regexec)}) {
    Dl_info info;
    ASSERT_NE(::dladdr(function, &info), 0);
    EXPECT_EQ(std::string(info.dli_fname).find("onig"), std::string::npos) << info.dli_fname;
  }
}

// Oniguruma's own limit counts retries per match, so it allows seconds for each of several matches, and counts a retry
// of 500 steps like one of a single step.
TEST(RegexSplitter, LimitsStepsPerText) {
  const auto message = [](const std::string& pattern, const std::string& text) {
    try {
      RegexSplitter(pattern).split(text, [](std::string_view) {});
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(message("(?:a?){500}a{500}b", std::string(3000, 'a')),
              ::testing::HasSubstr("the tokenizer's pattern \"(?:a?){500}a{500}b\" exceeded its limits at byte 0"));
  std::string words;
  for (int i = 0; i < 100; ++i) words += std::string(24, 'a') + "!";
  EXPECT_THAT(message("(?:a|aa|aaa)+c|a+!", words), ::testing::HasSubstr("exceeded its limits"))
      << "all matches together";
  EXPECT_THAT(message("(?:a?){500}(?:[a{2}]{50}){10}b(?!c)", std::string(3000, 'a') + "bc"),
              ::testing::HasSubstr("exceeded its limits"));
  words.clear();
  for (int i = 0; i < 5'000; ++i) words += std::string(16, 'a') + "!";
  EXPECT_THAT(message("(?:a|aa|aaa)+c|a+!", words), ::testing::HasSubstr("exceeded its limits"))
      << "many matches of little each";
  EXPECT_EQ(message("a{500}b", std::string(1 << 14, 'a')), "") << "steps without retries";
  EXPECT_EQ(message("c(?=d)|b", std::string(1 << 20, 'c')), "") << "the budget grows with the text";
}

}  // namespace
}  // namespace witan

#include "witan/fetch/hub_answers.h"

#include <gtest/gtest.h>

#include "fetch/fetch_support.h"
#include "witan/base/error.h"

namespace witan::fetch {
namespace {

using test::message_of;

std::string file_with(const std::string& members) {
  return R"([{"type": "file", "path": "a", "oid": ")" + std::string(40, 'a') + "\", " + members + "}]";
}

TEST(HubAnswers, ListFilesAndSayTheirSize) {
  const auto files = parse_files(file_with("\"size\": 7"), "page");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE(files[0] == (HubFile{"a", 7, {DigestKind::git_blob, std::string(40, 'a')}}));
  EXPECT_TRUE(parse_files(R"([{"type": "directory", "path": "../x"}])", "page").empty());
}

TEST(HubAnswers, RefuseSizesThatAreNoWholeNumbers) {
  for (const char* size : {"1.5", "1e300", "\"7\"", "null", "[7]"})
    EXPECT_EQ(
        message_of<DataError>([&] { parse_files(file_with(std::string("\"size\": ") + size), "page"); }).substr(0, 40),
        "page: a: \"size\" is not as it should be: ")
        << size;
}

TEST(HubAnswers, NameTheNextPage) {
  HttpResult result;
  EXPECT_EQ(next_page(result), "");
  result.take_header("Link: <https://a/b?cursor=x>; rel=\"next\"");
  EXPECT_EQ(next_page(result), "https://a/b?cursor=x");
  result.take_header("HTTP/1.1 200 OK");
  result.take_header("Link: <https://a/first>; rel=first, <https://a/2>; rel=next");
  EXPECT_EQ(next_page(result), "https://a/2");
}

}  // namespace
}  // namespace witan::fetch

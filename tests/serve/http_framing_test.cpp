// Request heads that arrive in pieces, and RFC 9112's rules about valid requests. http_server_test.cpp tests them with
// a running server.
#include "witan/serve/http_framing.h"

#include <gtest/gtest.h>

#include "serve/http_client.h"

namespace witan::serve {
namespace {

using State = HeadScanner::State;

// The result is independent of how bytes are split.
void expect_scan(const std::string& bytes, State expected, size_t begin = 0, size_t end = 0) {
  HeadScanner whole, one_by_one;
  EXPECT_EQ(whole.scan(bytes), expected) << bytes;
  State state = State::more;
  for (size_t size = 1; size <= bytes.size() && state == State::more; ++size)
    state = one_by_one.scan(std::string_view(bytes).substr(0, size));
  EXPECT_EQ(state, expected) << bytes;
  if (expected != State::complete) return;
  EXPECT_EQ(whole.begin(), begin) << bytes;
  EXPECT_EQ(whole.end(), end) << bytes;
  EXPECT_EQ(one_by_one.end(), end) << bytes;
}

TEST(HeadScanner, FindsTheEnd) {
  expect_scan("GET / HTTP/1.1\r\n\r\n", State::complete, 0, 18);
  expect_scan("GET / HTTP/1.1\r\n\r\nGET", State::complete, 0, 18);
  expect_scan("\r\n\r\nGET / HTTP/1.1\r\na: b\r\n\r\n", State::complete, 4, 28);
  for (const char* part :
       {"", "\r", "\r\n", "GET / HTTP/1.1", "GET / HTTP/1.1\r", "GET / HTTP/1.1\r\n", "G\r\na: b\r\n\r"})
    expect_scan(part, State::more);
}

TEST(HeadScanner, RefusesInvalidLines) {
  for (const char* bad : {"\n", "GET\n", "GET\r\n\n", "GET\rX", "\rG", "GET\r\na: b\n\r\n", "GET\r\na: b\r\r\n",
                          "GET\r\n a: b", "GET\r\na: b\r\n\tc", "G\x01", "\x16\x03\x01", "GET\r\na: \x7f"})
    expect_scan(bad, State::malformed);
  expect_scan(std::string("GET\r\na: \0", 9), State::malformed);
  expect_scan("GET\r\na:\tb \xc3\xa9\r\n\r\n", State::complete, 0, 16);
}

}  // namespace
}  // namespace witan::serve

namespace witan::test {
namespace {

TEST(Gzip, IsUsedOnlyIfAccepted) {
  for (const char* header : {"gzip", "gzip, deflate, br, zstd", "br,gzip;q=0.5", "GZIP", "deflate, *", "*;q=0.1",
                             "gzip;q=1.000", "*;q=0, gzip", "identity;q=0, gzip; q=0.001"})
    EXPECT_TRUE(serve::accepts_gzip(header)) << header;
  for (const char* header : {"", "identity", "br", "gzip;q=0", "gzip; q=0.000", "*;q=0", "*, gzip;q=0", "xgzip",
                             "gzipx", "br;gzip", ";", ",,,", "gzip;q=", "\"gzip\"", "q=1"})
    EXPECT_FALSE(serve::accepts_gzip(header)) << header;
}

TEST(Gzip, RoundTripsTexts) {
  std::string text, noise;
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i % 100) + ",";
  for (uint32_t i = 1; i < 100'000; ++i) noise += static_cast<char>(i * 2654435761U >> 24);
  for (const std::string& one : {std::string(), std::string("a"), text, noise})
    EXPECT_EQ(gunzip(serve::gzip(one)), one);
  EXPECT_LT(serve::gzip(text).size(), text.size() / 10);
}

}  // namespace
}  // namespace witan::test

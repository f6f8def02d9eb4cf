#include "witan/serve/gzip.h"

#include <gtest/gtest.h>

#include "serve/gunzip.h"

namespace witan::test {
namespace {

TEST(Gzip, IsForThoseWhoTakeIt) {
  for (const char* header : {"gzip", "gzip, deflate, br, zstd", "br,gzip;q=0.5", "GZIP", "deflate, *", "*;q=0.1",
                             "gzip;q=1.000", "*;q=0, gzip", "identity;q=0, gzip; q=0.001"})
    EXPECT_TRUE(serve::accepts_gzip(header)) << header;
  for (const char* header : {"", "identity", "br", "gzip;q=0", "gzip; q=0.000", "*;q=0", "*, gzip;q=0", "xgzip",
                             "gzipx", "br;gzip", ";", ",,,", "gzip;q=", "\"gzip\"", "q=1"})
    EXPECT_FALSE(serve::accepts_gzip(header)) << header;
}

TEST(Gzip, TextsComeBack) {
  std::string text, noise;
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i % 100) + ",";
  for (uint32_t i = 1; i < 100'000; ++i) noise += static_cast<char>(i * 2654435761U >> 24);
  for (const std::string& one : {std::string(), std::string("a"), text, noise})
    EXPECT_EQ(gunzip(serve::gzip(one)), one);
  EXPECT_LT(serve::gzip(text).size(), text.size() / 10);
}

}  // namespace
}  // namespace witan::test

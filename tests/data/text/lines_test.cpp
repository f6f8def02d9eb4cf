#include "witan/data/text/lines.h"

#include <gtest/gtest.h>

#include <cstring>

namespace witan {
namespace {

// Hands out `step` bytes at a time.
class StringReader final : public ByteReader {
 public:
  StringReader(std::string text, size_t step) : text_(std::move(text)), step_(step) {}
  size_t read(char* out, size_t bytes) override {
    const size_t n = std::min({bytes, step_, text_.size() - at_});
    std::memcpy(out, text_.data() + at_, n);
    at_ += n;
    return n;
  }
  uint64_t offset() const override { return at_; }

 private:
  std::string text_;
  size_t step_, at_ = 0;
};

std::vector<std::string> lines_of(const std::string& text, size_t step) {
  StringReader reader(text, step);
  LineReader lines(reader, 8);
  std::vector<std::string> all;
  while (lines.next()) all.push_back(std::string(lines.text()) + (lines.too_long() ? "!" : ""));
  EXPECT_EQ(lines.number(), static_cast<int64_t>(all.size()));
  return all;
}

TEST(Lines, AreTheSameHoweverTheBytesArrive) {
  for (const size_t step : {1, 2, 3, 1000}) {
    EXPECT_EQ(lines_of("", step), (std::vector<std::string>{}));
    EXPECT_EQ(lines_of("\n", step), (std::vector<std::string>{""}));
    EXPECT_EQ(lines_of("a\nbc", step), (std::vector<std::string>{"a", "bc"}));
    EXPECT_EQ(lines_of("a\r\n\nb\n", step), (std::vector<std::string>{"a", "", "b"}));
    EXPECT_EQ(lines_of("12345678\n", step), (std::vector<std::string>{"12345678"}));
    EXPECT_EQ(lines_of("123456789\nok\n1234567890", step), (std::vector<std::string>{"12345678!", "ok", "12345678!"}));
  }
}

}  // namespace
}  // namespace witan

#include "witan/data/tar/tar_reader.h"

#include <cstdio>

#include "data/data_support.h"
#include "support/bytes_in_memory.h"
#include "witan/data/tables/damage.h"

namespace witan::tar {
namespace {

using Members = std::vector<std::pair<std::string, std::string>>;

std::string octal(uint64_t value) {
  std::array<char, 12> text{};
  std::snprintf(text.data(), text.size(), "%011llo", static_cast<unsigned long long>(value));
  return text.data();
}

// A header of the given type; `size` is the raw text of its 12-byte field.
std::string header(char type, const std::string& name, const std::string& size) {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  block.replace(124, size.size(), size);
  block.replace(148, 8, 8, ' ');
  block[156] = type;
  uint64_t sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  block.replace(148, 7, octal(sum).substr(4));
  return block;
}

std::string padded(const std::string& contents) {
  return contents + std::string((512 - contents.size() % 512) % 512, '\0');
}

std::string file(char type, const std::string& name, const std::string& contents) {
  return header(type, name, octal(contents.size())) + padded(contents);
}

Members members_of(const std::string& archive) {
  test::BytesInMemory bytes(archive + std::string(1024, '\0'));
  TarReader reader(bytes);
  Members members;
  for (Member member; reader.next(member);) {
    std::string contents;
    reader.read(contents, 1 << 20);
    members.emplace_back(member.name, contents);
  }
  return members;
}

TEST(TarReader, ReadsThreeTypesOfFiles) {
  EXPECT_EQ(members_of(file('0', "a", "1") + file('\0', "b", "2") + file('7', "c", "3") + file('5', "d/", "")),
            (Members{{"a", "1"}, {"b", "2"}, {"c", "3"}}));
}

// The size of a link is the size of its target, and no contents follow.
TEST(TarReader, LinksHaveNoContents) {
  for (const char type : {'1', '2'})
    EXPECT_EQ(members_of(header(type, "link", octal(5000)) + file('0', "a", "1")), (Members{{"a", "1"}}));
}

TEST(TarReader, ReadsNamesAndSizesOfPaxRecords) {
  const std::string contents(700, 'x');
  EXPECT_EQ(members_of(file('x', "pax", "9 path=n\n12 size=700\n") + header('0', "short", octal(0)) + padded(contents)),
            (Members{{"n", contents}}));
}

// Extension headers apply to the next member across GNU long link names and global records.
TEST(TarReader, ExtensionHeadersApplyToTheNextMember) {
  const std::string said = file('x', "pax", "9 path=n\n");
  EXPECT_EQ(members_of(said + file('g', "global", "12 comment=x") + file('K', "link", "l") + file('0', "a", "1")),
            (Members{{"n", "1"}}));
  EXPECT_EQ(members_of(said + file('5', "d/", "") + file('0', "a", "1")), (Members{{"a", "1"}}));
}

TEST(TarReader, ExtensionsOfWholeBlocksHaveNoPadding) {
  const std::string name(511, 'n');
  EXPECT_EQ(members_of(file('L', "long", name + '\0') + file('0', "a", "1")), (Members{{name, "1"}}));
}

// Like Python's tarfile, which the package webdataset uses, the reader ends at one block of zeros. POSIX requires two,
// but some writers write only one, or other bytes after it.
TEST(TarReader, EndsAtTheFirstBlockOfZeros) {
  const std::string first = file('0', "a", "1"), mark(512, '\0');
  for (const std::string& behind : {std::string(), file('0', "b", "2") + mark + mark, std::string(600, 'x')}) {
    test::BytesInMemory bytes(first + mark + behind);
    TarReader reader(bytes);
    Member member;
    ASSERT_TRUE(reader.next(member));
    EXPECT_EQ(member.name, "a");
    for (int again = 0; again < 3; ++again) EXPECT_FALSE(reader.next(member));
  }
}

TEST(TarReader, ReadsBinaryNumbers) {
  std::string size(12, '\0');
  size[0] = '\x80';
  size[11] = 3;
  EXPECT_EQ(members_of(header('0', "a", size) + padded("abc")), (Members{{"a", "abc"}}));
  size[3] = 1;  // 2^64 and more
  EXPECT_THROW(members_of(header('0', "a", size) + padded("abc")), tables::Damaged);
}

}  // namespace
}  // namespace witan::tar

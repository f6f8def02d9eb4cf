#include "witan/data/parquet/thrift.h"

#include "data/data_support.h"
#include "data/parquet/encoders.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {
namespace {

using tables::Damaged;
using Type = ThriftReader::Type;
using Field = ThriftReader::Field;

// {1: i32 -3, 2: true, 20: "ab", 21: [i64 1, 2], 22: {1: i8 -1}, 23: map {i32: string}, 24: double, 25: set<bool>}
std::string example() {
  std::string bytes = "\x15";
  append_zigzag(bytes, -3);
  bytes += "\x11";
  bytes += "\x08";  // the id follows, since it is more than 15 greater
  append_zigzag(bytes, 20);
  bytes +=
      "\x02"
      "ab";
  bytes += "\x19\x26";
  append_zigzag(bytes, 1);
  append_zigzag(bytes, 2);
  bytes += std::string("\x1C\x13\xFF\x00", 4);
  bytes += "\x1B\x01\x58\x04\x01x";
  bytes +=
      "\x17"
      "8 bytes.";
  bytes += "\x1A\x21\x01\x02";
  return bytes + '\0';
}

TEST(Thrift, ReadsFieldsAndSkipsTheRest) {
  const std::string bytes = example();
  for (const bool skip_all : {false, true}) {
    ThriftReader in(bytes);
    std::vector<int> ids;
    std::vector<int64_t> list;
    in.fields([&](const Field& field) {
      ids.push_back(field.id);
      if (skip_all) return in.skip(field);
      if (field.id == 1) {
        EXPECT_EQ(in.integer32(field), -3);
      } else if (field.id == 2) {
        EXPECT_TRUE(in.boolean(field));
      } else if (field.id == 20) {
        EXPECT_EQ(in.text(field), "ab");
      } else if (field.id == 22) {
        in.structure(field, [&](const Field& inner) { EXPECT_EQ(in.integer(inner), -1); });
      } else {
        in.skip(field);
      }
    });
    EXPECT_EQ(ids, (std::vector<int>{1, 2, 20, 21, 22, 23, 24, 25}));
    EXPECT_EQ(in.position(), bytes.size());
  }
}

TEST(Thrift, RefusesEveryTruncation) {
  const std::string bytes = example();
  for (size_t length = 0; length < bytes.size(); ++length) {
    ThriftReader in(std::string_view(bytes).substr(0, length));
    EXPECT_THROW(in.fields([&](const Field& field) { in.skip(field); }), Damaged) << length;
  }
}

void expect_refused(const std::string& bytes) {
  ThriftReader in(bytes);
  EXPECT_THROW(in.fields([&](const Field& field) { in.skip(field); }), Damaged);
}

TEST(Thrift, RefusesNestingSizesAndTypesBeyondTheBytes) {
  expect_refused(std::string(100'000, '\x1C'));                                             // structs within structs
  expect_refused("\x19" + std::string(100'000, '\x19'));                                    // lists within lists
  expect_refused(std::string("\x19\xF5\xFF\xFF\xFF\xFF\x0F\x00", 8));                       // a list of 2^32 integers
  expect_refused(std::string("\x18\xFF\xFF\xFF\xFF\x0F\x00", 7));                           // a text of 2^32 bytes
  expect_refused(std::string("\x1B\xFF\xFF\xFF\xFF\x0F\x55\x00", 8));                       // a map of 2^32
  expect_refused(std::string("\x1D\x00", 2));                                               // type 13
  expect_refused(std::string("\x16\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01\x00", 13));  // 77 bits
}

// fastparquet writes empty lists as a zero byte, without a type.
TEST(Thrift, AcceptsEmptyListsWithoutAType) {
  const std::string bytes("\x19\x00\x1A\x00\x15\x08\x00", 7);  // {1: [], 2: set(), 3: i32 4}
  for (const bool skip_all : {false, true}) {
    ThriftReader in(bytes);
    std::vector<int> ids;
    in.fields([&](const Field& field) {
      ids.push_back(field.id);
      if (field.id == 1 && !skip_all)
        in.list(field, Type::i64, [] { ADD_FAILURE() << "the list is empty"; });
      else
        in.skip(field);
    });
    EXPECT_EQ(ids, (std::vector<int>{1, 2, 3}));
  }
  expect_refused(std::string("\x19\x10\x00\x00", 4));  // an element without a type
  expect_refused(std::string("\x19\x1D\x00\x00", 4));  // an element of type 13
}

TEST(Thrift, RefusesAFieldOfAnotherType) {
  const std::string bytes = example();
  ThriftReader in(bytes);
  EXPECT_THROW(in.fields([&](const Field& field) { in.text(field); }), Damaged);
  ThriftReader again(bytes);
  EXPECT_THROW(again.fields([&](const Field& field) { again.list(field, Type::i32, [] {}); }), Damaged);
}

}  // namespace
}  // namespace witan::parquet

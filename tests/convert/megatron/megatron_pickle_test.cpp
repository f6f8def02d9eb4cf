#include "witan/convert/megatron/megatron_pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "witan/base/error.h"
#include "witan/convert/megatron/megatron_torch_writer.h"

namespace witan {
namespace {

using Kind = PickleValue::Kind;
using ::testing::HasSubstr;
using namespace std::string_literals;

std::string refusal(const std::string& bytes) {
  try {
    const Pickle pickle(bytes, "file");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "none";
}

TEST(MegatronPickle, RecordsCallsWithoutRunningThem) {
  const std::string bytes = "\x80\x02"s + "cposix\nsystem\n" + "X\x04\0\0\0true"s + "\x85R.";
  const Pickle pickle(bytes, "file");
  ASSERT_TRUE(pickle.root().is(Kind::object));
  EXPECT_TRUE(pickle.root().callee()->is_global("posix", "system"));
  EXPECT_EQ(pickle.root().items[1]->items[0]->text, "true");
  EXPECT_EQ(pickle.bytes_read(), bytes.size());
}

TEST(MegatronPickle, RoundTrips) {
  PickleWriter writer;
  writer.arguments({{"none", {}},
                    {"flag", true},
                    {"small", int64_t{-7}},
                    {"large", int64_t{1} << 40},
                    {"number", 1.5},
                    {"text", std::string("rope")},
                    {"list", std::vector<int64_t>{0, 1}}});
  const std::string bytes = writer.finish();
  const Pickle pickle(bytes, "file");
  EXPECT_TRUE(pickle.root().callee()->is_global("argparse", "Namespace"));
  const auto members = pickle.root().state->members();
  EXPECT_TRUE(members.at("none")->is(Kind::none));
  EXPECT_TRUE(members.at("flag")->is(Kind::boolean) && members.at("flag")->integer == 1);
  EXPECT_EQ(members.at("small")->integer, -7);
  EXPECT_EQ(members.at("large")->integer, int64_t{1} << 40);
  EXPECT_EQ(members.at("number")->number, 1.5);
  EXPECT_EQ(members.at("text")->text, "rope");
  EXPECT_EQ(members.at("list")->items.size(), 2u);
}

TEST(MegatronPickle, RefusesDamage) {
  EXPECT_THAT(refusal(""), HasSubstr("file: the pickle ends in the middle"));
  EXPECT_THAT(refusal("\x80\x02"s + "X\xff\xff\xff\x7f"s + "a."), HasSubstr("ends in the middle"));
  EXPECT_THAT(refusal("\x80\x02."), HasSubstr("takes a value from an empty stack"));
  EXPECT_THAT(refusal("\x80\x02t."), HasSubstr("looks for a mark"));
  EXPECT_THAT(refusal("\x80\x02(N0."), HasSubstr("empty stack"));
  EXPECT_THAT(refusal("\x80\x02h\x05."), HasSubstr("recalls what it has not kept"));
  EXPECT_THAT(refusal("\x80\x02NNs."), HasSubstr("empty stack"));
  EXPECT_THAT(refusal("\x80\x02NNNs."), HasSubstr("puts values into what holds none"));
  EXPECT_THAT(refusal("\x80\x02}(Nu."), HasSubstr("a key without a value"));
  EXPECT_THAT(refusal("\x80\x02NNb."), HasSubstr("sets attributes of what is no object"));
  EXPECT_THAT(refusal("\x80\x07N."), HasSubstr("protocol 7"));
  EXPECT_THAT(refusal("\x80\x02\x82\x01."), HasSubstr("opcode 130"));
}

// A list may contain itself, which must not cause endless recursion.
TEST(MegatronPickle, MayContainItself) {
  const std::string bytes = "\x80\x02]q\0h\0a."s;
  const Pickle pickle(bytes, "file");
  EXPECT_EQ(pickle.root().items.front(), &pickle.root());
}

}  // namespace
}  // namespace witan

#include "witan/data/parquet/schema.h"

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {
namespace {

using tables::Damaged;
using Kind = tables::ColumnKind;

SchemaElement group(const std::string& name, Repetition repetition, int32_t children,
                    Meaning meaning = Meaning::plain) {
  return {name, std::nullopt, repetition, children, meaning};
}

SchemaElement leaf(const std::string& name, Repetition repetition, Physical physical = Physical::byte_array,
                   Meaning meaning = Meaning::text) {
  return {name, physical, repetition, 0, meaning};
}

constexpr auto kRequired = Repetition::required, kOptional = Repetition::optional, kRepeated = Repetition::repeated;

// Formats each node as name(kind definition), and lists with the levels of their items.
std::string shape(const Node& node) {
  std::string text = node.name + " " + std::to_string(node.definition);
  if (node.kind == Kind::list)
    text += "[" + std::to_string(node.item_definition) + "," + std::to_string(node.item_repetition) + ": " +
            shape(node.children[0]) + "]";
  if (node.kind == Kind::structure) {
    text += "{";
    for (const Node& child : node.children) text += (text.ends_with('{') ? "" : ", ") + shape(child);
    text += "}";
  }
  return text;
}

std::string shape_of(std::vector<SchemaElement> columns) {
  int32_t tops = 1;  // all tests have a single column
  columns.insert(columns.begin(), group("schema", kRequired, tops));
  return shape(read_schema(columns).root.children[0]);
}

// The forms of LogicalTypes.md: the current one and those of older writers.
TEST(ParquetSchema, RecognisesEveryFormOfLists) {
  EXPECT_EQ(
      shape_of({group("l", kOptional, 1, Meaning::list), group("list", kRepeated, 1), leaf("element", kOptional)}),
      "l 1[2,1: element 3]");
  EXPECT_EQ(
      shape_of({group("l", kRequired, 1, Meaning::list), group("list", kRepeated, 1), leaf("element", kRequired)}),
      "l 0[1,1: element 1]");
  EXPECT_EQ(shape_of({group("l", kOptional, 1, Meaning::list), leaf("element", kRepeated)}), "l 1[2,1: element 2]");
  EXPECT_EQ(shape_of({group("l", kOptional, 1, Meaning::list), group("element", kRepeated, 2), leaf("a", kRequired),
                      leaf("b", kOptional)}),
            "l 1[2,1: element 2{a 2, b 3}]");
  EXPECT_EQ(shape_of({group("l", kOptional, 1, Meaning::list), group("array", kRepeated, 1), leaf("a", kRequired)}),
            "l 1[2,1: array 2{a 2}]");
  EXPECT_EQ(shape_of({group("l", kOptional, 1, Meaning::list), group("l_tuple", kRepeated, 1), leaf("a", kRequired)}),
            "l 1[2,1: l_tuple 2{a 2}]");
  EXPECT_EQ(shape_of({group("l", kOptional, 1, Meaning::list), group("list", kRepeated, 1, Meaning::list),
                      leaf("array", kRepeated)}),
            "l 1[2,1: list 2[3,2: array 3]]")
      << "a list of lists, both with two levels";
  EXPECT_EQ(shape_of({leaf("l", kRepeated)}), "l 0[1,1: l 1]") << "repeated, but not a list";
  EXPECT_EQ(shape_of({group("l", kRepeated, 2), leaf("a", kOptional), leaf("b", kRepeated)}),
            "l 0[1,1: l 1{a 2, b 1[2,2: b 2]}]");
}

TEST(ParquetSchema, LeavesHavePathsAndLevels) {
  const Schema schema =
      read_schema({group("schema", kRequired, 2), leaf("id", kRequired, Physical::int64, Meaning::plain),
                   group("m", kOptional, 1, Meaning::list), group("list", kRepeated, 1), group("element", kOptional, 2),
                   leaf("role", kRequired), leaf("content", kOptional)});
  ASSERT_EQ(schema.leaves.size(), 3u);
  EXPECT_EQ(schema.leaves[2].path, "m.list.element.content");
  EXPECT_EQ(schema.leaves[2].most_definition, 4);
  EXPECT_EQ(schema.leaves[2].most_repetition, 1);
  EXPECT_EQ(schema.root.leaves, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(tables::find_column(schema.root, "m.content")->leaf, 2);
  EXPECT_EQ(tables::find_column(schema.root, "m.none"), nullptr);
}

TEST(ParquetSchema, FindsNamesWithDots) {
  const Schema schema = read_schema(
      {group("schema", kRequired, 2), leaf("a.b", kRequired), group("a", kRequired, 1), leaf("b.c", kRequired)});
  EXPECT_EQ(tables::find_column(schema.root, "a.b")->leaf, 0);
  EXPECT_EQ(tables::find_column(schema.root, "a.b.c")->leaf, 1);
}

TEST(ParquetSchema, SkipsTypesThatJsonLacks) {
  const Schema schema = read_schema(
      {group("schema", kRequired, 3), leaf("day", kRequired, Physical::int32, Meaning::something),
       group("map", kOptional, 1, Meaning::map), group("key_value", kRepeated, 2), leaf("key", kRequired),
       leaf("value", kOptional), group("s", kOptional, 3), leaf("n", kRequired, Physical::int32, Meaning::natural),
       leaf("raw", kRequired, Physical::fixed_bytes, Meaning::plain), group("empty", kRequired, 1),
       leaf("old", kRequired, Physical::int96, Meaning::plain)});
  EXPECT_EQ(shape(writable_as_json(schema.root)), " 0{s 1{n 1}}");
}

TEST(ParquetSchema, RefusesUnterminatedTrees) {
  EXPECT_THROW(read_schema({}), Damaged);
  EXPECT_THROW(read_schema({leaf("root", kRequired)}), Damaged);
  EXPECT_THROW(read_schema({group("schema", kRequired, 2), leaf("a", kRequired)}), Damaged);
  EXPECT_THROW(read_schema({group("schema", kRequired, 1), leaf("a", kRequired), leaf("b", kRequired)}), Damaged);
  EXPECT_THROW(read_schema({group("schema", kRequired, -1)}), Damaged);
  EXPECT_THROW(read_schema(std::vector<SchemaElement>(1000, group("g", kOptional, 1))), Damaged);
  EXPECT_THROW(read_schema(std::vector<SchemaElement>(1000, group("g", kRepeated, 1, Meaning::list))), Damaged);
}

}  // namespace
}  // namespace witan::parquet

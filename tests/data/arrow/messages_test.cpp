#include "witan/data/arrow/messages.h"

#include "data/data_support.h"
#include "witan/data/tables/damage.h"

namespace witan::arrow {
namespace {

using ::testing::HasSubstr;

// A handwritten FlatBuffer: all offsets point forward, except those to vtables.
class Bytes {
 public:
  size_t size() const { return bytes_.size(); }
  const std::string& text() const { return bytes_; }
  template <class T>
  void add(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  // An unknown offset, and its target, which is written next.
  size_t later() {
    add(uint32_t{0});
    return bytes_.size() - 4;
  }
  void here(size_t place) {
    const auto offset = static_cast<uint32_t>(bytes_.size() - place);
    bytes_.replace(place, 4, reinterpret_cast<const char*>(&offset), 4);
  }
  // Writes a vtable with the places of the fields, relative to the table. Returns the place of the table.
  size_t head(const std::vector<uint16_t>& fields, uint16_t table_bytes) {
    const size_t place = bytes_.size();
    add(static_cast<uint16_t>(4 + 2 * fields.size()));
    add(table_bytes);
    for (const uint16_t field : fields) add(field);
    return place;
  }
  void table(size_t head) { add(static_cast<int32_t>(bytes_.size() - head)); }

 private:
  std::string bytes_;
};

// A message with a schema of one column: nested structs, `depth` deep, each of which has the next one as a child
// `times` times.
std::string nested_schema(int depth, uint32_t times) {
  Bytes out;
  const size_t root = out.later();
  const size_t message = out.head({4, 6, 8, 0}, 12), schema = out.head({0, 4}, 8),
               field = out.head({0, 0, 12, 4, 0, 8}, 16), nothing = out.head({}, 4);
  out.here(root);
  out.table(message);
  out.add(uint16_t{4});  // version
  out.add(uint16_t{1});  // the header is a schema
  const size_t header = out.later();
  out.here(header);
  out.table(schema);
  std::vector<size_t> next = {out.later()};
  out.here(next[0]);
  out.add(uint32_t{1});
  next = {out.later()};
  for (int level = 0; level < depth; ++level) {
    for (const size_t place : next) out.here(place);
    out.table(field);
    const size_t type = out.later(), children = out.later();
    out.add(uint32_t{13});  // a struct
    out.here(type);
    out.table(nothing);
    out.table(nothing);
    out.here(children);
    out.add(level + 1 < depth ? times : 0);
    next.clear();
    for (uint32_t i = 0; level + 1 < depth && i < times; ++i) next.push_back(out.later());
  }
  Bytes framed;
  framed.add(~uint32_t{0});
  framed.add(static_cast<uint32_t>(out.size()));
  return framed.text() + out.text();
}

Field schema_of(const std::string& bytes) {
  const auto file = tables::open_memory(bytes);
  Message message;
  EXPECT_TRUE(MessageReader(*file).next(message));
  return message.schema.value();
}

TEST(ArrowMessages, ReadsAHandwrittenSchema) {
  const Field root = schema_of(nested_schema(3, 2));
  ASSERT_EQ(root.children.size(), 1u);
  ASSERT_EQ(root.children[0].children.size(), 2u);
  EXPECT_EQ(root.children[0].children[1].layout, Layout::structure);
  EXPECT_TRUE(root.children[0].children[1].children[0].children.empty());
}

// Tables may be shared, so a few bytes could describe 2^50 fields.
TEST(ArrowMessages, RefusesMoreFieldsThanBytes) {
  for (const auto& [depth, times] : {std::pair(50, 2u), std::pair(65, 1u), std::pair(6, 60u)}) {
    try {
      schema_of(nested_schema(depth, times));
      ADD_FAILURE() << depth << " " << times;
    } catch (const tables::Damaged& damage) {
      EXPECT_THAT(damage.reason, HasSubstr("more fields than bytes"));
    }
  }
}

}  // namespace
}  // namespace witan::arrow

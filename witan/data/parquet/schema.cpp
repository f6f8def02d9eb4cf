#include "witan/data/parquet/schema.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::intact;

namespace {

constexpr int kMostNesting = 64;
using Kind = tables::ColumnKind;

Kind kind_of_leaf(const SchemaElement& element) {
  if (element.meaning == Meaning::nothing) return Kind::null;
  const bool number = element.meaning == Meaning::plain || element.meaning == Meaning::natural;
  switch (*element.physical) {
    case Physical::byte_array:  // without a meaning: bytes, which older writers left unsaid for text
      return element.meaning == Meaning::text || element.meaning == Meaning::plain ? Kind::text : Kind::other;
    case Physical::int32:
    case Physical::int64:
      if (!number) return Kind::other;
      return element.meaning == Meaning::natural ? Kind::natural : Kind::integer;
    case Physical::float32:
    case Physical::float64:
      return number ? Kind::real : Kind::other;
    case Physical::boolean:
      return Kind::boolean;
    case Physical::int96:
    case Physical::fixed_bytes:
      break;
  }
  return Kind::other;
}

// Makes the tree from the elements, depth first.
class Builder {
 public:
  explicit Builder(const std::vector<SchemaElement>& elements) : elements_(elements) {}

  Schema build() {
    intact(!elements_.empty() && !elements_[0].physical, "the schema has no root");
    const int32_t children = elements_[0].children;
    next_ = 1;
    schema_.root.kind = Kind::structure;
    add_children(schema_.root, children, {0, 0, 0, {}});
    intact(next_ == elements_.size(), "the schema has ", elements_.size(), " elements, its tree ", next_);
    return std::move(schema_);
  }

 private:
  // The place of an element in the tree.
  struct Level {
    int definition = 0, repetition = 0, depth = 0;
    std::string path;
  };

  const SchemaElement& element(size_t index) const {
    intact(index < elements_.size(), "the schema ends early");
    return elements_[index];
  }

  void add_children(Node& node, int32_t count, const Level& level) {
    intact(count >= 0 && level.depth < kMostNesting, "the schema is nested deeper than ", kMostNesting,
           ", or has a negative number of children");
    for (int32_t i = 0; i < count; ++i)
      add_child(node, {level.definition, level.repetition, level.depth + 1, level.path}, false);
  }

  void add_child(Node& parent, Level level, bool is_item) {
    Node child = build_node(std::move(level), is_item);
    parent.leaves.insert(parent.leaves.end(), child.leaves.begin(), child.leaves.end());
    parent.children.push_back(std::move(child));
  }

  // The element at next_ and all below it. `is_item`: the list that it repeats in is known already.
  Node build_node(Level level, bool is_item) {
    intact(level.depth <= kMostNesting, "the schema is nested deeper than ", kMostNesting);
    const SchemaElement& here = element(next_);
    Node node;
    node.name = here.name;
    if (here.repetition == Repetition::repeated && !is_item) return bare_list(here, level);
    if (here.repetition == Repetition::optional) ++level.definition;
    ++next_;
    level.path += (level.path.empty() ? "" : ".") + here.name;
    node.definition = level.definition;
    if (here.physical) {
      intact(here.children == 0, "the column ", clipped(level.path), " has children");
      add_leaf(node, here, level);
    } else if (here.meaning == Meaning::list && here.children == 1 &&
               element(next_).repetition == Repetition::repeated) {
      fill_list(node, here, level);
    } else {
      node.kind = here.meaning == Meaning::map ? Kind::other : Kind::structure;
      add_children(node, here.children, level);
    }
    return node;
  }

  // A repeated field outside a list is a list that cannot be null.
  Node bare_list(const SchemaElement& here, const Level& level) {
    Node node;
    node.name = here.name;
    node.kind = Kind::list;
    node.definition = level.definition;
    node.item_definition = level.definition + 1;
    node.item_repetition = level.repetition + 1;
    add_child(node, {level.definition + 1, level.repetition + 1, level.depth + 1, level.path}, true);
    return node;
  }

  // next_ is at the repeated element within the list's group: the item itself, or a group around it.
  void fill_list(Node& node, const SchemaElement& list, const Level& level) {
    const SchemaElement& repeated = element(next_);
    node.kind = Kind::list;
    node.item_definition = level.definition + 1;
    node.item_repetition = level.repetition + 1;
    const bool is_item = repeated.physical || repeated.children != 1 || repeated.name == "array" ||
                         repeated.name == list.name + "_tuple" || element(next_ + 1).repetition == Repetition::repeated;
    Level inside{node.item_definition, node.item_repetition, level.depth + 1, level.path};
    if (!is_item) {
      inside.path += "." + repeated.name;
      ++next_;
    }
    add_child(node, std::move(inside), is_item);
  }

  void add_leaf(Node& node, const SchemaElement& here, const Level& level) {
    node.kind = kind_of_leaf(here);
    node.leaf = static_cast<int>(schema_.leaves.size());
    node.leaves = {node.leaf};
    schema_.leaves.push_back({node.leaf, level.path, *here.physical, here.meaning, level.definition, level.repetition});
  }

  const std::vector<SchemaElement>& elements_;
  size_t next_ = 0;
  Schema schema_;
};

}  // namespace

Schema read_schema(const std::vector<SchemaElement>& elements) {
  return Builder(elements).build();
}

Node writable_as_json(const Node& node) {
  Node kept = node;
  kept.children.clear();
  if (node.leaf >= 0) return kept;
  kept.leaves.clear();
  for (const Node& child : node.children) {
    Node inner = writable_as_json(child);
    if (inner.kind == Kind::other) continue;
    kept.leaves.insert(kept.leaves.end(), inner.leaves.begin(), inner.leaves.end());
    kept.children.push_back(std::move(inner));
  }
  if (kept.children.empty()) kept.kind = Kind::other;
  return kept;
}

}  // namespace witan::parquet

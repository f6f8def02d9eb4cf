// The schema of a Parquet file as its logical tree of lists and structs, without the groups that encode them
// (LogicalTypes.md of the Parquet format, with its rules for lists of older writers), and the levels at which a value
// is present (Dremel, Melnik et al. 2010).
#pragma once

#include <string>
#include <vector>

#include "witan/data/parquet/metadata.h"
#include "witan/data/tables/column_path.h"

namespace witan::parquet {

// A column of the file, which stores one leaf.
struct Leaf {
  int index = 0;     // among the columns of a row group
  std::string path;  // "messages.list.element.role", as other tools show it
  Physical physical = Physical::boolean;
  Meaning meaning = Meaning::plain;
  int most_definition = 0, most_repetition = 0;  // levels
};

struct Node {
  std::string name;
  tables::ColumnKind kind = tables::ColumnKind::other;
  int definition = 0;          // the node is null where the level is less
  int item_definition = 0;     // of a list: it is empty where the level is less
  int item_repetition = 0;     // of a list: its next item begins where the level is this one
  std::vector<Node> children;  // fields of a struct; the item of a list
  int leaf = -1;               // of a leaf: in Schema::leaves
  std::vector<int> leaves;     // all below the node, itself included, in order
};

struct Schema {
  Node root;  // a struct
  std::vector<Leaf> leaves;
};

// Throws tables::Damaged.
Schema read_schema(const std::vector<SchemaElement>& elements);

// Keeps only the fields that can be written as JSON: text, numbers, booleans, and structs and lists of them. Drops
// dates, decimals, bytes and maps, and structs and lists that have nothing else.
Node writable_as_json(const Node& node);

}  // namespace witan::parquet

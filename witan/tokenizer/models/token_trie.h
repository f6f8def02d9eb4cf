// Finds the tokens that a text starts with: a trie of all tokens as a double array (Aoe 1989,
// https://doi.org/10.1109/32.31365) that checks labels only, since no two nodes share a base.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Immutable: its methods may be called from several threads.
class TokenTrie {
 public:
  // An empty trie.
  TokenTrie() = default;
  // Adds the tokens with these ids, whose texts must be distinct and not empty. Returns false and leaves the trie empty
  // if they need more than 2^24 nodes.
  [[nodiscard]] bool build(const std::vector<std::string>& tokens, std::vector<int32_t> ids);

  // A prefix of tokens. Its child for a byte, if any, is the prefix with that byte appended.
  struct Node {
    int32_t id = -1;         // the token equal to this prefix, or -1
    uint32_t base : 24 = 0;  // 0: not a node
    uint32_t label : 8 = 0;
  };
  // The base of the empty prefix.
  uint32_t root() const { return root_; }
  // The place of the child of a node with this base; is_child() checks whether the child exists.
  const Node* child(uint32_t base, unsigned char label) const { return &nodes_[base ^ label]; }
  static bool is_child(const Node& node, unsigned char label) { return node.label == label && node.base != 0; }

  // The longest token that is a prefix of `text`, or -1.
  int32_t longest_prefix(std::string_view text) const {
    int32_t longest = -1;
    uint32_t base = root_;
    for (const char c : text) {
      const auto label = static_cast<unsigned char>(c);
      const Node& node = *child(base, label);
      if (!is_child(node, label)) break;
      if (node.id >= 0) longest = node.id;
      base = node.base;
    }
    return longest;
  }

 private:
  class Builder;

  std::vector<Node> nodes_ = std::vector<Node>(256);
  uint32_t root_ = 1;
};

}  // namespace witan

// A trie of byte strings with ids, to find which of them a text starts with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace witan {

// The edges are in one hash table with open addressing, at most half full. Reading is thread-safe.
class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;  // no edge leads to it, so it also means "no such child"

  // The last id counts if a text is added twice.
  void add(std::string_view text, int32_t id) {
    uint32_t node = kRoot;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      uint32_t next = child(node, byte);
      if (next == kRoot) {
        if (2 * ids_.size() >= edges_.size()) grow();
        next = static_cast<uint32_t>(ids_.size());
        edges_[place(node, byte)] = {node, next, byte};
        ids_.push_back(-1);
      }
      node = next;
    }
    ids_[node] = id;
  }

  uint32_t child(uint32_t node, unsigned char byte) const { return edges_[place(node, byte)].to; }
  // The id of the text that ends at this node, or -1.
  int32_t id(uint32_t node) const { return ids_[node]; }

  // The length of the longest added text that is a prefix of `text`; 0 if there is none.
  size_t longest_prefix(std::string_view text) const {
    size_t longest = 0;
    uint32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == kRoot) break;
      if (ids_[node] >= 0) longest = i + 1;
    }
    return longest;
  }

 private:
  struct Edge {
    uint32_t from = 0, to = kRoot;
    unsigned char byte = 0;
  };

  size_t place(uint32_t node, unsigned char byte) const {
    const size_t mask = edges_.size() - 1;
    const uint64_t key = static_cast<uint64_t>(node) << 8 | byte;
    for (size_t i = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;; i = (i + 1) & mask)
      if (edges_[i].to == kRoot || (edges_[i].from == node && edges_[i].byte == byte)) return i;
  }
  void grow() {
    std::vector<Edge> old(2 * edges_.size());
    old.swap(edges_);
    for (const Edge& edge : old)
      if (edge.to != kRoot) edges_[place(edge.from, edge.byte)] = edge;
  }

  std::vector<Edge> edges_ = std::vector<Edge>(1024);
  std::vector<int32_t> ids_ = {-1};
};

}  // namespace witan

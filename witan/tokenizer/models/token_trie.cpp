#include "witan/tokenizer/models/token_trie.h"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <span>
#include <utility>

namespace witan {
namespace {

constexpr uint32_t kBlock = 256;
constexpr uint32_t kLeaf = 1;      // the base of all nodes without children, and of no other node
constexpr int kMostFailures = 20;  // a block that had no room for so many nodes is not tried any more
constexpr uint32_t kMostNodes = 1 << 24;

}  // namespace

// Finds a base for each node at which the places of all its children are free.
class TokenTrie::Builder {
 public:
  Builder(TokenTrie& trie, const std::vector<std::string>& tokens) : trie_(trie), tokens_(tokens) {}

  // Stops once there are too many nodes.
  void build(std::vector<int32_t> ids) {
    trie_.nodes_.clear();
    add_block();
    if (!ids.empty()) trie_.root_ = put_below({ids, 0});
    while (!tasks_.empty() && trie_.nodes_.size() <= kMostNodes) {
      const auto [task, node] = tasks_.back();
      tasks_.pop_back();
      const uint32_t base = put_below(task);
      trie_.nodes_[node].base = base;
    }
  }

 private:
  // The tokens below a node, and the length of their common prefix.
  struct Task {
    std::span<int32_t> ids;
    size_t depth;
  };
  struct Block {
    uint32_t first = 0;
    int failures = 0;
    std::array<uint64_t, 4> free = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};  // a bit for each place
    std::bitset<kBlock> is_base;
    bool is_free(uint32_t place) const { return (free[place / 64] >> (place % 64) & 1) != 0; }
    void take(uint32_t place) { free[place / 64] &= ~(uint64_t{1} << (place % 64)); }
  };

  unsigned char label_of(int32_t id, size_t depth) const {
    return static_cast<unsigned char>(tokens_[static_cast<size_t>(id)][depth]);
  }

  // Returns the base of the new nodes.
  uint32_t put_below(const Task& task) {
    const auto label = [&](int32_t id) { return label_of(id, task.depth); };
    std::sort(task.ids.begin(), task.ids.end(), [&](int32_t a, int32_t b) { return label(a) < label(b); });
    labels_.clear();
    for (const int32_t id : task.ids)
      if (labels_.empty() || labels_.back() != label(id)) labels_.push_back(label(id));
    const uint32_t base = take_base();
    for (auto begin = task.ids.begin(); begin != task.ids.end();) {
      const unsigned char own = label(*begin);
      const auto end = std::find_if(begin, task.ids.end(), [&](int32_t id) { return label(id) != own; });
      put_node(base ^ own, {{begin, end}, task.depth + 1}, own);
      begin = end;
    }
    return base;
  }

  void put_node(uint32_t at, Task below, unsigned char label) {
    Node& node = trie_.nodes_[at];
    node.label = label;
    node.base = kLeaf;
    const auto whole = std::find_if(below.ids.begin(), below.ids.end(),
                                    [&](int32_t id) { return tokens_[static_cast<size_t>(id)].size() == below.depth; });
    if (whole != below.ids.end()) {
      node.id = *whole;
      std::swap(*whole, below.ids.front());
      below.ids = below.ids.subspan(1);
    }
    if (!below.ids.empty()) tasks_.emplace_back(below, at);
  }

  // Finds a base for children with labels_ and takes their places.
  uint32_t take_base() {
    for (size_t i = 0; i < open_.size(); ++i) {
      if (const uint32_t base = base_in(open_[i]); base != 0) return base;
      if (++open_[i].failures > kMostFailures) open_.erase(open_.begin() + static_cast<ptrdiff_t>(i--));
    }
    add_block();
    return base_in(open_.back());
  }
  // Returns 0 if the block has no such base.
  uint32_t base_in(Block& block) {
    for (uint32_t part = 0; part < block.free.size(); ++part)
      for (uint64_t places = block.free[part]; places != 0; places &= places - 1) {
        const uint32_t base = (64 * part + static_cast<uint32_t>(std::countr_zero(places))) ^ labels_[0];
        const auto is_free = [&](unsigned char label) { return block.is_free(base ^ label); };
        if (block.is_base[base] || !std::all_of(labels_.begin(), labels_.end(), is_free)) continue;
        block.is_base[base] = true;
        for (const unsigned char label : labels_) block.take(base ^ label);
        return block.first + base;
      }
    return 0;
  }
  void add_block() {
    const auto first = static_cast<uint32_t>(trie_.nodes_.size());
    trie_.nodes_.resize(first + kBlock);
    open_.emplace_back();
    open_.back().first = first;
    if (first == 0) open_[0].is_base[0] = open_[0].is_base[kLeaf] = true;
  }

  TokenTrie& trie_;
  const std::vector<std::string>& tokens_;
  std::vector<std::pair<Task, uint32_t>> tasks_;  // with their nodes
  std::vector<unsigned char> labels_;
  std::vector<Block> open_;
};

bool TokenTrie::build(const std::vector<std::string>& tokens, std::vector<int32_t> ids) {
  Builder(*this, tokens).build(std::move(ids));
  if (nodes_.size() <= kMostNodes) return true;
  *this = TokenTrie();
  return false;
}

}  // namespace witan

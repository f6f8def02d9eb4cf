// What a disk may hold after a power failure at some moment of a log of operations.
//
// The model is that of a file system without barriers or journal, after what ALICE (Pillai et al., OSDI 2014) assumes
// of them. Only fsync makes anything durable: of a file its bytes and its size, of a folder the names in it. Of
// everything else each piece has happened or has not, in any order:
//   - the bytes of a write, cut at blocks of 4 KiB; a block may be torn at a sector of 512 bytes;
//   - the size of a file, apart from its bytes: where it grew and its bytes are not there, there are zeros;
//   - each name that was made, removed or renamed.
// Three things happen in order even there: what changes the same name, the size of the same file, or the same block.
// Renaming, and exchanging two names, happens at once or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reliability/file_log.h"
#include "witan/base/numbers/rng.h"

namespace witan::test {

// Paths below a folder: a file's bytes; nothing: a folder.
using Tree = std::map<std::string, std::optional<std::string>>;
Tree read_tree(const fs::path& folder);
void write_tree(const fs::path& folder, const Tree& tree);

class CrashStates {
 public:
  // `before` is durable.
  explicit CrashStates(const Tree& before);

  void apply(const Operation& operation);

  // As running programs see the files.
  Tree seen() const;

  // Which pending pieces have happened.
  enum class Fate : uint8_t { lost, torn, whole };
  size_t pending() const { return pending_.size(); }
  // What the disk holds then. A piece whose predecessor has not happened whole has not happened either.
  Tree disk(std::vector<Fate> fates) const;

  // Fates to try: all of them if there are at most `all`; otherwise none, all, each one alone, all but each one, and
  // `samples` random ones.
  std::vector<std::vector<Fate>> choose(size_t all, size_t samples, const Philox& rng) const;

 private:
  static constexpr uint64_t kBlock = 4096, kSector = 512;
  using Number = int64_t;  // of a file or folder; 0: none

  struct Node {
    bool folder = false;
    uint64_t size = 0;
    std::map<uint64_t, std::string> blocks;
    std::map<std::string, Number> names;  // of a folder
  };
  using Nodes = std::map<Number, Node>;

  struct Name {
    Number folder;
    std::string name;
    Number now;  // what it names afterwards
  };
  // What happens at once.
  struct Piece {
    std::vector<Name> names = {};
    Number file = 0;  // of a size or bytes
    std::optional<uint64_t> size = {};
    uint64_t at = 0;  // of the bytes, in the file
    std::string bytes = {};
    std::vector<size_t> after = {};  // numbers of pieces that happen first
  };

  Number find(const std::string& path) const;
  std::pair<Number, std::string> place(const std::string& path) const;  // the folder, and the name in it
  Number make(bool folder);
  void write(Number file, uint64_t offset, const std::string& bytes);
  void resize(Number file, uint64_t size);
  void sync(Number node);
  void add(Piece piece);
  void settle(size_t number);
  static bool depends(const Piece& later, const Piece& earlier);
  static void happen(Nodes& nodes, const Piece& piece, Fate fate);
  static void collect(const Nodes& nodes, Number folder, const std::string& prefix, Tree& tree);

  Nodes seen_, durable_;
  std::map<size_t, Piece> pending_;  // by their numbers, in order of time
  size_t pieces_ = 0;
  Number nodes_ = 1;  // the first one is the folder itself
};

}  // namespace witan::test

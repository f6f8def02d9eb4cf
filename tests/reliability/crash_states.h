// States that a disk can have after a power failure at some moment of a log of operations.
//
// The model is a file system without barriers or journal, with the assumptions of ALICE (Pillai et al., OSDI 2014).
// Only fsync makes anything durable: a file's bytes and size, or the names in a folder. Every other piece may or may
// not have happened, in any order:
//   - the bytes of a write, split into blocks of 4 KiB; a block may be torn at a sector of 512 bytes;
//   - the size of a file, independently of its bytes: where it grew without its bytes, there are zeros;
//   - each name that was created, removed or renamed.
// Order is kept only among changes of the same name, of the same file's size, or of the same block. A rename or an
// exchange of two names is atomic.
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

// Maps paths below a folder to a file's bytes, or to nothing for a folder.
using Tree = std::map<std::string, std::optional<std::string>>;
Tree read_tree(const fs::path& folder);
void write_tree(const fs::path& folder, const Tree& tree);

class CrashStates {
 public:
  // `before` is durable.
  explicit CrashStates(const Tree& before);

  void apply(const Operation& operation);

  // The files as running programs see them.
  Tree seen() const;

  // Which pending pieces have happened.
  enum class Fate : uint8_t { lost, torn, whole };
  size_t pending() const { return pending_.size(); }
  // The content of the disk. A piece cannot have happened if its predecessor has not happened completely.
  Tree disk(std::vector<Fate> fates) const;

  // Combinations to try: all if there are at most `all`; otherwise none, all, each one alone, all but each one, and
  // `samples` random ones.
  std::vector<std::vector<Fate>> choose(size_t all, size_t samples, const Philox& rng) const;

 private:
  static constexpr uint64_t kBlock = 4096, kSector = 512;
  using Number = int64_t;  // number of a file or folder; 0: none

  struct Node {
    bool folder = false;
    uint64_t size = 0;
    std::map<uint64_t, std::string> blocks;
    std::map<std::string, Number> names;  // the entries of a folder
  };
  using Nodes = std::map<Number, Node>;

  struct Name {
    Number folder;
    std::string name;
    Number now;  // the new target
  };
  // An atomic change.
  struct Piece {
    std::vector<Name> names = {};
    Number file = 0;  // the file of a change of size or bytes
    std::optional<uint64_t> size = {};
    uint64_t at = 0;  // offset of the bytes in the file
    std::string bytes = {};
    std::vector<size_t> after = {};  // pieces that must happen first
  };

  Number find(const std::string& path) const;
  std::pair<Number, std::string> place(const std::string& path) const;  // the folder and the name in it
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
  std::map<size_t, Piece> pending_;  // by number, in order of time
  size_t pieces_ = 0;
  Number nodes_ = 1;  // the first node is the root folder
};

}  // namespace witan::test

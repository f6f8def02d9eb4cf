// Finds documents of a corpus that duplicate earlier ones: exactly by a hash of the normalised text, nearly by MinHash.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/data/dedup/key_sorter.h"
#include "witan/data/dedup/minhash.h"

namespace witan {

class DisjointSets {
 public:
  explicit DisjointSets(int64_t documents) : parents_(static_cast<size_t>(documents)) {
    std::iota(parents_.begin(), parents_.end(), int64_t{0});
  }

  // The least document of the set.
  int64_t first(int64_t document) {
    auto at = static_cast<size_t>(document);
    while (parents_[at] != static_cast<int64_t>(at)) {
      parents_[at] = parents_[static_cast<size_t>(parents_[at])];
      at = static_cast<size_t>(parents_[at]);
    }
    return static_cast<int64_t>(at);
  }

  // False if they were one set already.
  bool join(int64_t a, int64_t b) {
    a = first(a);
    b = first(b);
    if (a == b) return false;
    if (a > b) std::swap(a, b);
    parents_[static_cast<size_t>(b)] = a;
    return true;
  }

  int64_t documents() const { return static_cast<int64_t>(parents_.size()); }

 private:
  std::vector<int64_t> parents_;  // a parent is never after its child
};

struct DuplicateOptions {
  bool near = true;  // else only exact duplicates are found
  Normalization normalization = Normalization::space;
  ShingleOptions shingles;
  BandOptions bands;
  // Candidates count as duplicates only if the sets of their shingles have at least this Jaccard similarity; without
  // it, all candidates do.
  std::optional<double> least_similarity;
  uint64_t memory = uint64_t{2} << 30;  // for keys; beyond that they are sorted on disk
  fs::path temporary;                   // folder of temporary files
};

struct Removal {
  int64_t document = 0;
  int64_t kept = 0;  // the first document of the cluster
  bool exact = false;
};

// Near duplicates form clusters: documents connected by candidate pairs or equal texts. Keeps 8 bytes and a bit
// for each document in memory, beside the keys; where only exact duplicates are looked for, it does not. Results depend
// on the texts, their order and the options alone. Not thread-safe but for keys_of().
class DuplicateFinder {
 public:
  // Throws ConfigError for options that make no sense.
  explicit DuplicateFinder(const DuplicateOptions& options);

  struct Keys {
    DocumentKey text;
    std::vector<DocumentKey> bands;  // empty for a text without words, which has no near duplicates
  };
  Keys keys_of(std::string_view text) const;
  // Ascending and without repetitions, as verify() wants them.
  std::vector<uint64_t> shingle_set(std::string_view text) const;

  // Once for each document, in order.
  void add(const Keys& keys);
  // After the last document: forms groups of equal keys.
  void group();

  // With `least_similarity`, after group(): the documents that verify() asks for, by number.
  const std::vector<bool>& candidates() const { return candidates_; }
  // Joins the candidates that are similar enough. `shingles(document)` gives the shingle_set().
  void verify(const std::function<std::vector<uint64_t>(int64_t document)>& shingles);

  // The documents to remove, in order; false at the end. After group(), or verify() where that is asked for.
  bool next(Removal& removal);

  int64_t documents() const { return documents_; }
  int64_t verified_pairs() const { return verified_; }
  int64_t rejected_pairs() const { return rejected_; }
  uint64_t spilled() const { return spilled_; }  // bytes of keys on disk

 private:
  void group_exact();
  void group_near();
  void take_group(std::vector<int64_t>& group, bool exact);
  void verify_group(const std::vector<int64_t>& group,
                    const std::function<std::vector<uint64_t>(int64_t document)>& shingles);

  DuplicateOptions options_;
  MinHash minhash_;
  std::optional<KeySorter> keys_;
  std::optional<KeySorter> removals_;  // of exact duplicates alone: the key is the pair of documents
  std::optional<DisjointSets> sets_;
  std::vector<bool> exact_, candidates_;  // by document
  std::optional<SpillFile> groups_;       // of candidates to verify: their number, then their documents
  int64_t documents_ = 0, at_ = 0, verified_ = 0, rejected_ = 0;
  uint64_t spilled_ = 0;
};

}  // namespace witan

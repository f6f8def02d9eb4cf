#include "witan/data/dedup/dedup.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/corpus/parallel_documents.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/rows/row_reader.h"
#include "witan/data/text/jsonl.h"

namespace witan {
namespace {

// The place of a document, a hash to recognize it by when it is read again, and its size.
struct Place {
  uint64_t source = 0, row = 0, check = 0, bytes = 0;
};

uint64_t check_of(std::string_view text) {
  return text_key(text, Normalization::none).low;
}

// A list of the places of all documents, on disk.
class Places {
 public:
  explicit Places(const fs::path& folder) : file_(folder) {}

  void add(const Place& place) { file_.append(&place, sizeof place); }
  Place at(int64_t document) {
    Place place;
    file_.read(static_cast<uint64_t>(document) * sizeof place, &place, sizeof place);
    return place;
  }

 private:
  SpillFile file_;
};

// The sets of shingles of those documents that are compared, on disk.
class ShingleSets {
 public:
  explicit ShingleSets(const fs::path& folder) : file_(folder) {}

  // Must be called in the order of the documents.
  void add(int64_t document, const std::vector<uint64_t>& shingles) {
    entries_.push_back({document, file_.size(), shingles.size()});
    file_.append(shingles.data(), shingles.size() * sizeof(uint64_t));
  }
  std::vector<uint64_t> at(int64_t document) {
    const auto entry = std::lower_bound(entries_.begin(), entries_.end(), document,
                                        [](const Entry& e, int64_t wanted) { return e.document < wanted; });
    std::vector<uint64_t> shingles(entry->count);
    file_.read(entry->offset, shingles.data(), shingles.size() * sizeof(uint64_t));
    return shingles;
  }

 private:
  struct Entry {
    int64_t document;
    uint64_t offset, count;
  };
  SpillFile file_;
  std::vector<Entry> entries_;
};

// Whole rows of tables, read along with their texts.
class RowsOfTables {
 public:
  explicit RowsOfTables(const CorpusOptions& options) : options_(options), parser_(options.json_key) {}

  // The row of a document, of which later ones are asked for later; empty if its text is one of several in a list.
  std::string of(const Document& document) {
    if (source_ != document.origin.source) {
      source_ = document.origin.source;
      const TableColumns columns{.text = {}, .row_bytes = options_.row_bytes, .whole = true};
      table_ = open_table(source_->path, source_->kind, columns);
      cell_ = {};
    }
    while (cell_.row < document.origin.row && table_->next(cell_)) continue;
    if (cell_.row != document.origin.row || !cell_.reason.empty()) return "";
    std::string row = row_of_table(cell_);
    if (options_.replace_invalid_utf8) row = replace_invalid_utf8(row);
    return parser_.parse(row).text == document.text ? row : "";
  }

 private:
  const CorpusOptions& options_;
  JsonlParser parser_;
  const Source* source_ = nullptr;
  std::unique_ptr<TableReader> table_;
  TableCell cell_;
};

class Deduplicator {
 public:
  Deduplicator(const std::vector<Source>& sources, const DedupOptions& options,
               const std::function<void(const DedupProgress&)>& progress)
      : sources_(sources),
        options_(options),
        progress_(progress),
        finder_(options.duplicates),
        places_(options.duplicates.temporary) {
    again_.quarantine.clear();  // the first reading has listed what is unusable
    for (const Source& source : sources) total_ += source.bytes;
  }

  DedupResult run() {
    hash();
    finder_.group();
    if (options_.duplicates.least_similarity) compare();
    write();
    result_.verified_pairs = finder_.verified_pairs();
    result_.rejected_pairs = finder_.rejected_pairs();
    result_.spilled = finder_.spilled();
    return result_;
  }

 private:
  void report(DedupPhase phase, uint64_t done) const {
    if (progress_) progress_({phase, done, total_});
  }

  // The number of documents, as they were read first.
  void expect_same(int64_t documents, const char* what) const {
    require<DataError>(documents == finder_.documents(), "the sources had ", finder_.documents(),
                       " documents when they were read first, and ", documents, " ", what,
                       ": they changed meanwhile; run the command again");
  }
  void expect_same(const Document& document, int64_t number) {
    const bool same = number < finder_.documents() && places_.at(number).check == check_of(document.text);
    require<DataError>(same, document.origin.source->path.string(),
                       ": it changed while duplicates were looked for; run the command again");
  }

  void hash() {
    struct Hashed {
      DuplicateFinder::Keys keys;
      uint64_t check = 0;
    };
    using Work = ParallelDocuments<Hashed>;
    Work work(
        options_.threads,
        [&](std::string_view text) {
          return Hashed{finder_.keys_of(text), check_of(text)};
        },
        [&](const Work::Waiting& document, const Hashed& hashed) {
          places_.add({static_cast<uint64_t>(document.source - sources_.data()), static_cast<uint64_t>(document.row),
                       hashed.check, document.text.size()});
          finder_.add(hashed.keys);
        });
    result_.corpus = read_corpus(sources_, options_.corpus, [&](const Document& document) {
      work.add(document);
      report(DedupPhase::hashing, document.source_bytes);
    });
    work.flush();
  }

  void compare() {
    ShingleSets sets(options_.duplicates.temporary);
    std::vector<int64_t> numbers;  // of documents that wait in `work`
    size_t taken = 0;
    using Work = ParallelDocuments<std::vector<uint64_t>>;
    Work work(
        options_.threads, [&](std::string_view text) { return finder_.shingle_set(text); },
        [&](const Work::Waiting&, const std::vector<uint64_t>& set) {
          sets.add(numbers[taken], set);
          if (++taken < numbers.size()) return;
          numbers.clear();
          taken = 0;
        });
    int64_t number = 0;
    read_corpus(sources_, again_, [&](const Document& document) {
      expect_same(document, number);
      if (finder_.candidates()[static_cast<size_t>(number)]) {
        numbers.push_back(number);
        work.add(document);
      }
      ++number;
      report(DedupPhase::comparing, document.source_bytes);
    });
    work.flush();
    expect_same(number, "when they were read again");
    finder_.verify([&](int64_t document) { return sets.at(document); });
  }

  nlohmann::ordered_json place_json(int64_t document, const Place& place) const {
    nlohmann::ordered_json json = {{"document", document}, {"source", sources_[place.source].path.string()}};
    json["row"] = nullptr;
    if (place.row > 0) json["row"] = place.row;
    return json;
  }

  // Counts a removal, and writes it into the list.
  void take(const Removal& removal, AtomicFile* list) {
    const Place place = places_.at(removal.document);
    ++(removal.exact ? result_.exact : result_.near);
    (removal.exact ? result_.exact_bytes : result_.near_bytes) += place.bytes;
    if (!list) return;
    nlohmann::ordered_json row = place_json(removal.document, place);
    row["duplicate"] = removal.exact ? "exact" : "near";
    row["kept"] = place_json(removal.kept, places_.at(removal.kept));
    list->write(row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  // The row of a document that stays.
  std::string row_of(const Document& document) {
    if (!document.origin.line.empty()) return std::string(document.origin.line) + "\n";
    if (is_table(document.origin.source->kind)) {
      const std::string row = table_rows_.of(document);
      if (!row.empty()) return row + "\n";
    }
    return row_with_text(options_.corpus.json_key, document.text, ":") + "\n";
  }

  void write() {
    std::optional<AtomicFile> kept, list;
    if (!options_.kept.empty()) kept.emplace(options_.kept);
    if (!options_.removed.empty()) list.emplace(options_.removed);
    Removal removal;
    bool more = finder_.next(removal);
    std::vector<bool> first(static_cast<size_t>(finder_.documents()));  // of clusters
    const auto remove = [&] {
      if (!first[static_cast<size_t>(removal.kept)]) ++result_.clusters;
      first[static_cast<size_t>(removal.kept)] = true;
      take(removal, list ? &*list : nullptr);
      more = finder_.next(removal);
    };
    if (kept) {
      int64_t number = 0;
      read_corpus(sources_, again_, [&](const Document& document) {
        expect_same(document, number);
        if (more && removal.document == number)
          remove();
        else
          kept->write(row_of(document));
        ++number;
        report(DedupPhase::writing, document.source_bytes);
      });
      expect_same(number, "when they were read again");
    }
    while (more) remove();
    if (list) list->commit();
    if (kept) kept->commit();
  }

  const std::vector<Source>& sources_;
  const DedupOptions& options_;
  const std::function<void(const DedupProgress&)>& progress_;
  CorpusOptions again_ = options_.corpus;
  DuplicateFinder finder_;
  RowsOfTables table_rows_{options_.corpus};
  Places places_;
  DedupResult result_;
  uint64_t total_ = 0;
};

}  // namespace

DedupResult dedup_corpus(const std::vector<Source>& sources, const DedupOptions& options,
                         const std::function<void(const DedupProgress&)>& progress) {
  return Deduplicator(sources, options, progress).run();
}

}  // namespace witan

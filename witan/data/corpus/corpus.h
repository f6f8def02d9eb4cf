// Reads a corpus as a stream of documents, with memory bounded by one document.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/corpus/conversations.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/text/quarantine.h"

namespace witan {

struct CorpusOptions {
  // Key of the text in rows of JSON Lines (jsonl.h), column of it in tables (tables/table_reader.h); or a path with
  // dots.
  std::string json_key = "text";
  // The flag that names it, for messages.
  std::string key_option = "--json-key";
  // A plain-text file up to this size is one document. A larger one is split into documents: at the last blank line in
  // the second half of each such window, else at its last newline, else between two characters.
  uint64_t document_bytes = 16 << 20;
  // Longer rows are unusable.
  uint64_t row_bytes = 64 << 20;
  // A larger share of unusable rows is an error.
  double bad_row_share = 0.1;
  // Whether invalid UTF-8 is replaced by U+FFFD, in plain text and in rows; otherwise it is an error.
  bool replace_invalid_utf8 = false;
  // Rows are conversations in this format, not texts; null: they are not.
  std::shared_ptr<const ConversationFormat> conversations = {};
  // Set before the format is known where rows will be conversations: the columns that check_encoding() looks for.
  std::string messages_key = {};
  bool preferences = false;  // rows will be pairs of answers, whose format is not known yet
  fs::path quarantine;       // file for unusable rows; empty: they are only counted
  QuarantineLimits quarantine_limits;
  // Keys that a usable row has beside json_key, each with a string; in a table columns, which have as many texts in it.
  std::vector<std::string> other_keys = {};
  // Whether documents without text are visited, too.
  bool visit_empty = false;
};

struct CorpusStatistics {
  int64_t documents = 0;        // without empty ones
  int64_t empty_documents = 0;  // skipped
  uint64_t text_bytes = 0;      // of the documents, UTF-8, after replacement
  int64_t rows = 0;             // of jsonl and tables, usable or not, without blank lines
  int64_t bad_rows = 0;
  int64_t replaced = 0;  // invalid UTF-8 sequences that were replaced by U+FFFD
};

// The row that a document comes from.
struct DocumentOrigin {
  const Source* source = nullptr;  // of those that are read
  int64_t row = 0;                 // from 1; 0 in plain text
  std::string_view line = {};      // the row as it stands in JSON Lines, valid UTF-8; empty elsewhere
};

struct Document {
  std::string_view text;                                 // valid UTF-8, not empty unless visit_empty
  std::span<const TextSpan> answers = {}, literal = {};  // of a conversation
  std::span<const float> weights = {};                   // likewise
  uint64_t source_bytes = 0;                             // bytes on disk read so far, all sources together: progress
  DocumentOrigin origin = {};                            // all of this is valid during the call
  PairPlace pair = PairPlace::none;                      // of a conversation

  // With copies of what it refers to.
  Conversation conversation() const {
    return {std::string(text),
            {answers.begin(), answers.end()},
            {literal.begin(), literal.end()},
            {weights.begin(), weights.end()},
            pair};
  }
};

// Calls `visit` with each document, sources in order. Unusable rows go to the quarantine and are only an error if their
// share exceeds `bad_row_share`; a row that is only wrong in its encoding does not count as unusable. Throws DataError
// for that share, for a NUL byte in plain text, for text that is not UTF-8 (unless it is to be replaced), and if there
// is no document at all; CorruptionError for damaged archives and tables; and what `visit` throws.
CorpusStatistics read_corpus(const std::vector<Source>& sources, const CorpusOptions& options,
                             const std::function<void(const Document&)>& visit);

// A position in the reading of a corpus: before source number `source`.
struct CorpusStart {
  size_t source = 0;
  CorpusStatistics statistics = {};  // without bad_rows, which the quarantine counts
  QuarantineState quarantine = {};
};

// Reads a corpus from `start` on. `at_source` is called before each source with the current position. Reading from that
// position visits the same documents and ends with the same statistics and quarantine.
CorpusStatistics read_corpus(const std::vector<Source>& sources, const CorpusOptions& options, const CorpusStart& start,
                             const std::function<void(const CorpusStart&)>& at_source,
                             const std::function<void(const Document&)>& visit);

// "2 of 9 rows are unusable and skipped" and "U+FFFD replaces 1 byte sequence that is not UTF-8", each if it applies.
std::vector<std::string> describe_losses(const CorpusStatistics& corpus);

// Reads the first MiB of each source, and throws what read_corpus() would throw for text there that is not UTF-8: a
// corpus in another encoding is detected before hours of work; and so is a table without the column, or in a codec that
// is not read.
void check_encoding(const std::vector<Source>& sources, const CorpusOptions& options);

}  // namespace witan

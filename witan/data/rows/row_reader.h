// The rows of a corpus, whole: rows of JSON Lines as they stand, those of tables as JSON objects of their columns, and
// documents of plain text as rows that hold them under a key.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/corpus/sources.h"
#include "witan/data/tables/table_reader.h"
#include "witan/data/text/jsonl.h"

namespace witan {

struct RowOptions {
  // A row without text under this key, which may be a path (jsonl.h), is unusable; empty: any JSON object is a row. Of
  // documents that are no rows it is the key that their text gets, by default "text".
  std::string text_key;
  bool replace_invalid_utf8 = false;   // as in CorpusOptions, and so are the next three
  double bad_row_share = 0.1;          // share of unusable rows beyond which the caller is to fail
  uint64_t row_bytes = 64 << 20;       // longer rows are unusable
  uint64_t document_bytes = 16 << 20;  // a longer file of plain text is several documents
};

struct Row {
  int64_t position = 0;       // line of a file of rows, number of the document elsewhere; from 1, rising
  std::string_view text;      // one line of JSON, without its end; valid during the call
  uint64_t source_bytes = 0;  // bytes on disk of this source read so far
};

struct UnusableRow {
  int64_t position = 0;
  std::string reason;
  std::string_view text;  // valid during the call
};

// Not thread-safe: holds the parser's buffers.
class RowReader {
 public:
  explicit RowReader(RowOptions options);

  // Calls `visit` with the rows of the source at positions above `after`, in order, and `refuse` with those that are
  // unusable. Throws DataError for text that is not UTF-8, unless it is to be replaced; CorruptionError for damaged
  // archives; IoError; and what the two throw.
  void read(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
            const std::function<void(const UnusableRow&)>& refuse);

 private:
  void read_lines(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                  const std::function<void(const UnusableRow&)>& refuse);
  void read_table(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                  const std::function<void(const UnusableRow&)>& refuse);
  void read_documents(const Source& source, int64_t after, const std::function<void(const Row&)>& visit);
  JsonlRow check(std::string_view line);
  // Why the line is unusable, or "". `mended` gets the line to use instead where its encoding was mended. Throws
  // DataError where it would have to be mended and may not.
  std::string check_line(const Source& source, int64_t number, std::string_view line, std::string& mended);

  RowOptions options_;
  JsonlParser parser_;
};

// {"text": "..."} as a line without its end; of a key with dots, as of "meta.title", nested objects. `colon`: what is
// between a key and its value.
std::string row_with_text(std::string_view key, std::string_view text, std::string_view colon = ": ");

// A whole row of a table as one line: files of JSON in archives may have several.
std::string row_of_table(const TableCell& cell);

// Opens each table; notes for the user about columns that rows of them are written without. Throws what open_table()
// does.
std::vector<std::string> columns_left_out(const std::vector<Source>& sources);
// These notes; and throws what check_encoding() throws, before any work.
std::vector<std::string> check_row_sources(const std::vector<Source>& sources, const RowOptions& options);

// The bytes that the sources hold once they are unpacked, estimated from the beginnings of up to 64 of them.
uint64_t expanded_bytes(const std::vector<Source>& sources);

}  // namespace witan

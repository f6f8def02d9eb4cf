#include "witan/data/corpus/corpus.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/tables/table_reader.h"
#include "witan/data/text/decompress.h"
#include "witan/data/text/encoding.h"
#include "witan/data/text/jsonl.h"

namespace witan {
namespace {

constexpr size_t kReadBytes = 1 << 20;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

int64_t count_replacements(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(kReplacement, at)) != std::string_view::npos; at += kReplacement.size()) ++count;
  return count;
}

// The position at which to end a document of at most `limit` bytes of `text`, which is longer.
size_t cut_point(std::string_view text, size_t limit) {
  const std::string_view window = text.substr(0, limit);
  const size_t blank = window.rfind("\n\n");
  if (blank != std::string_view::npos && blank + 2 > limit / 2) return blank + 2;
  const size_t newline = window.rfind('\n');
  if (newline != std::string_view::npos) return newline + 1;
  size_t cut = limit;
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  while (cut > 1 && limit - cut < 3 && continues(cut)) --cut;
  return cut;
}

// The offset of the byte within the text, after `before` bytes of the file (of what it unpacks to).
[[noreturn]] void refuse_text(const fs::path& path, std::string_view text, size_t at, uint64_t before) {
  throw DataError(cat(path.string(), ": byte ", before + at, ", ", clipped(text.substr(at, 1)), ", is not UTF-8; ",
                      explain_invalid_utf8(path, text, at)));
}

struct ReadRow {
  JsonlRow row;
  std::string mended;  // the line with U+FFFD for what is not UTF-8; empty: there was nothing to replace
};

// Throws DataError for a row that is good but for its encoding, unless that is to be replaced.
ReadRow read_row(JsonlParser& parser, const CorpusOptions& options, const fs::path& path, int64_t line,
                 std::string_view text) {
  ReadRow read{parser.parse(text), {}};
  if (read.row.good()) return read;
  const size_t at = find_invalid_utf8(text);
  if (at == std::string_view::npos) return read;
  std::string mended = replace_invalid_utf8(text);
  JsonlRow row = parser.parse(mended);
  if (!row.good()) return read;
  require<DataError>(options.replace_invalid_utf8, path.string(), ":", line, ": byte ", at, " of the line, ",
                     clipped(text.substr(at, 1)), ", is not UTF-8; ", explain_invalid_utf8(path, text, at));
  return {std::move(row), std::move(mended)};
}

// The columns of a row that read_conversations() reads.
TableColumns table_columns(const CorpusOptions& options) {
  const std::string key = options.conversations ? options.conversations->messages_key : options.messages_key;
  TableColumns columns{.text = options.json_key, .row_bytes = options.row_bytes, .option = options.key_option};
  if (key.empty()) return columns;
  columns.json = {key, "conversations", "tools", "input"};
  columns.json.insert(columns.json.end(), kPromptKeys.begin(), kPromptKeys.end());
  columns.json.insert(columns.json.end(), kAnswerKeys.begin(), kAnswerKeys.end());
  if (options.preferences || (options.conversations && options.conversations->preferences))
    columns.json = {"prompt", "chosen", "rejected", "tools"};
  columns.option = "--messages-key";
  return columns;
}

// The cells of the text's column; with other_keys, of rows that have a text in all of these columns.
std::unique_ptr<TableReader> open_cells(const Source& source, const CorpusOptions& options) {
  TableColumns columns = table_columns(options);
  auto cells = open_table(source.path, source.kind, columns);
  if (options.other_keys.empty()) return cells;
  std::vector<tables::AlignedColumn> aligned;
  aligned.push_back({columns.text, std::move(cells)});
  for (const std::string& other : options.other_keys) {
    columns.text = other;
    aligned.push_back({other, open_table(source.path, source.kind, columns)});
  }
  return tables::align_rows(source.path.string(), std::move(aligned));
}

// Whether the text is to be mended. Throws DataError if it is not UTF-8 and not to be mended.
bool check_cell(const Source& source, const TableCell& cell, const CorpusOptions& options) {
  const size_t at = find_invalid_utf8(cell.text);
  if (at == std::string_view::npos) return false;
  require<DataError>(options.replace_invalid_utf8, source.path.string(), ": row ", cell.row, ": byte ", at,
                     " of the text, ", clipped(cell.text.substr(at, 1)),
                     ", is not UTF-8; mend the column, or read it as it is with --replace-invalid-utf8 (replaces each "
                     "such sequence by U+FFFD)");
  return true;
}

class CorpusReader {
 public:
  CorpusReader(const CorpusOptions& options, const std::function<void(const Document&)>& visit,
               const CorpusStart& start = {}, uint64_t bytes_before = 0)
      : options_(options),
        visit_(visit),
        parser_(options.json_key, options.other_keys),
        quarantine_(options.quarantine, options.quarantine_limits, start.quarantine),
        statistics_(start.statistics),
        finished_bytes_(bytes_before) {
    require<ConfigError>(options.document_bytes >= 16 && options.row_bytes >= 16,
                         "document_bytes and row_bytes must be at least 16");
  }

  void read(const Source& source) {
    require<DataError>(
        !options_.conversations || source.kind != SourceKind::text, source.path.string(),
        ": conversations are rows of JSON Lines, Parquet or Arrow, not plain text: give .jsonl, .parquet "
        "or .arrow files");
    origin_ = {&source, 0, {}};
    if (is_table(source.kind)) return read_table(source);
    const auto bytes = open_bytes(source.path);
    if (source.kind == SourceKind::jsonl)
      read_rows(source, *bytes);
    else
      read_text(source, *bytes);
    finished_bytes_ += bytes->offset();
  }

  CorpusStart at(size_t source) const { return {source, statistics_, quarantine_.state()}; }

  CorpusStatistics finish(const std::vector<Source>& sources) {
    quarantine_.close();
    statistics_.bad_rows = quarantine_.count();
    const auto& s = statistics_;
    const std::string kept = quarantine_.kept() > 0 ? cat("; see ", quarantine_.path().string()) : "";
    require<DataError>(static_cast<double>(s.bad_rows) <= options_.bad_row_share * static_cast<double>(s.rows) &&
                           (s.rows == 0 || s.bad_rows < s.rows),
                       s.bad_rows, " of ", s.rows, " rows are unusable (limit ", 100 * options_.bad_row_share,
                       " %, see --bad-row-share; ", read_from(), "); the first is ", quarantine_.first(), kept);
    require<DataError>(s.documents > 0, "found no document with text in ", named(sources), what_there_was(sources));
    return s;
  }

 private:
  // "the text is read from the key text, see --json-key"
  std::string read_from() const {
    const ConversationFormat* const format = options_.conversations.get();
    if (format && format->preferences) return "pairs of answers are read from the keys prompt, chosen and rejected";
    return cat(format ? "messages are" : "the text is", " read from the key ",
               clipped(format ? format->messages_key : options_.json_key), ", see ",
               format ? "--messages-key" : options_.key_option);
  }

  // "a.txt", "9 files (a.txt, b.txt, c.txt ...)"
  static std::string named(const std::vector<Source>& sources) {
    constexpr size_t kNamed = 3;
    if (sources.size() == 1) return clipped(sources[0].path.string());
    std::string names;
    for (size_t i = 0; i < std::min(sources.size(), kNamed); ++i)
      names += cat(i == 0 ? "" : ", ", clipped(sources[i].path.string()));
    return cat(counted(std::ssize(sources), "file"), " (", names, sources.size() > kNamed ? " ...)" : ")");
  }
  // Instead of text.
  std::string what_there_was(const std::vector<Source>& sources) const {
    if (std::ranges::all_of(sources, [](const Source& one) { return one.bytes == 0; }))
      return sources.size() == 1 ? ": it is empty (0 bytes)" : ": all are empty (0 bytes)";
    return cat(" (", statistics_.empty_documents, " empty)");
  }
  // `read`: bytes of the source so far. `of`: the conversation that the text is of, if it is of one.
  void emit(std::string_view text, uint64_t read, const Conversation& of = {}) {
    if (text.empty()) {
      ++statistics_.empty_documents;
      if (options_.visit_empty) visit_({text, {}, {}, {}, finished_bytes_});
      return;
    }
    ++statistics_.documents;
    statistics_.text_bytes += text.size();
    visit_({text, of.answers, of.literal, of.weights, finished_bytes_ + read, origin_, of.pair});
  }

  // `before`: bytes of the source before the text.
  void emit_plain(const Source& source, std::string_view text, uint64_t before, const ByteReader& bytes) {
    const size_t at = find_invalid_utf8(text);
    if (at == std::string_view::npos) return emit(text, bytes.offset());
    if (!options_.replace_invalid_utf8) refuse_text(source.path, text, at, before);
    const std::string clean = replace_invalid_utf8(text);
    statistics_.replaced += count_replacements(clean) - count_replacements(text);
    emit(clean, bytes.offset());
  }

  void read_text(const Source& source, ByteReader& bytes) {
    std::string pending;
    uint64_t mark = 0, taken = 0;  // bytes of a byte-order mark, and of text, before `pending`
    for (bool first = true, more = true; more; first = false) {
      const size_t have = pending.size();
      pending.resize(have + kReadBytes);
      const size_t n = bytes.read(pending.data() + have, kReadBytes);
      pending.resize(have + n);
      more = n > 0;
      const size_t nul = pending.find('\0', have);
      require<DataError>(nul == std::string::npos, source.path.string(), ": NUL byte at offset ", mark + taken + nul,
                         " of the text: this is not a plain-text file");
      if (first && pending.starts_with(kByteOrderMark)) {
        mark = kByteOrderMark.size();
        pending.erase(0, mark);
      }
      std::string_view rest = pending;
      while (rest.size() > options_.document_bytes) {
        const size_t cut = cut_point(rest, options_.document_bytes);
        emit_plain(source, rest.substr(0, cut), mark + taken + (pending.size() - rest.size()), bytes);
        rest.remove_prefix(cut);
      }
      taken += pending.size() - rest.size();
      pending.erase(0, pending.size() - rest.size());
    }
    if (!pending.empty() || taken == 0) emit_plain(source, pending, mark + taken, bytes);
  }

  void read_rows(const Source& source, ByteReader& bytes) {
    LineReader lines(bytes, options_.row_bytes);
    while (lines.next()) {
      std::string_view text = lines.text();
      if (lines.number() == 1 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
      if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      ++statistics_.rows;
      const std::string too_long =
          lines.too_long() ? cat("the row is longer than ", options_.row_bytes, " bytes") : std::string();
      origin_ = {&source, lines.number(), text};
      if (options_.conversations) {
        read_conversation(source, lines.number(), text, too_long, bytes.offset());
        continue;
      }
      const ReadRow read = lines.too_long() ? ReadRow{{{}, too_long}, {}}
                                            : read_row(parser_, options_, source.path, lines.number(), text);
      if (!read.row.good()) {
        quarantine_.add(source.path, lines.number(), read.row.reason, text);
        continue;
      }
      if (!read.mended.empty()) statistics_.replaced += count_replacements(read.mended) - count_replacements(text);
      if (!read.mended.empty()) origin_.line = read.mended;
      emit(read.row.text, bytes.offset());
    }
  }

  // `reason`: why the row is unusable before it is looked at; empty: it is not.
  void read_conversation(const Source& source, int64_t row_number, std::string_view text, const std::string& reason,
                         uint64_t bytes) {
    const std::string mended = options_.replace_invalid_utf8 ? replace_invalid_utf8(text) : std::string(text);
    const ConversationRow row =
        reason.empty() ? witan::read_conversations(mended, *options_.conversations) : ConversationRow{{}, reason};
    if (!row.reason.empty()) return quarantine_.add(source.path, row_number, row.reason, text);
    if (options_.replace_invalid_utf8) statistics_.replaced += count_replacements(mended) - count_replacements(text);
    origin_.line = mended;
    for (const Conversation& one : row.conversations) emit(one.text, bytes, one);
  }

  void read_table(const Source& source) {
    const auto table = open_cells(source, options_);
    TableCell cell;
    for (int64_t row = 0; table->next(cell); row = cell.row) {
      if (cell.row != row) ++statistics_.rows;
      origin_ = {&source, cell.row, {}};
      if (options_.conversations)
        read_conversation(source, cell.row, cell.text, cell.reason, table->offset());
      else if (cell.reason.empty())
        emit_cell(source, cell, table->offset());
      else
        quarantine_.add(source.path, cell.row, cell.reason, cell.text);
    }
    finished_bytes_ += table->offset();
  }

  void emit_cell(const Source& source, const TableCell& cell, uint64_t bytes) {
    if (!check_cell(source, cell, options_)) return emit(cell.text, bytes);
    const std::string clean = replace_invalid_utf8(cell.text);
    statistics_.replaced += count_replacements(clean) - count_replacements(cell.text);
    emit(clean, bytes);
  }

  const CorpusOptions& options_;
  const std::function<void(const Document&)>& visit_;
  JsonlParser parser_;
  Quarantine quarantine_;
  CorpusStatistics statistics_;
  uint64_t finished_bytes_;
  DocumentOrigin origin_;  // of what is emitted next
};

constexpr size_t kCheckedBytes = 1 << 20;

void check_text(const Source& source, ByteReader& bytes) {
  std::string text(kCheckedBytes, '\0');
  size_t have = 0;
  for (size_t n = 1; n > 0 && have < text.size(); have += n) n = bytes.read(text.data() + have, text.size() - have);
  const bool whole = have < text.size();
  text.resize(have);
  const size_t at = find_invalid_utf8(text);
  constexpr size_t kLongest = 4;  // bytes of a character, which the end may cut
  if (at != std::string::npos && (whole || have - at >= kLongest)) refuse_text(source.path, text, at, 0);
}

void check_rows(const Source& source, const CorpusOptions& options, ByteReader& bytes) {
  JsonlParser parser(options.json_key);
  LineReader lines(bytes, options.row_bytes);
  for (size_t seen = 0; seen < kCheckedBytes && lines.next(); seen += lines.text().size() + 1)
    if (!lines.too_long() && find_invalid_utf8(lines.text()) != std::string_view::npos)
      read_row(parser, options, source.path, lines.number(), lines.text());
}

// Opening it finds most of what can be wrong.
void check_table(const Source& source, const CorpusOptions& options) {
  const auto table = open_cells(source, options);
  if (!table_columns(options).json.empty()) return;
  TableCell cell;
  for (size_t seen = 0; seen < kCheckedBytes && table->next(cell); seen += cell.text.size() + 1)
    if (cell.reason.empty()) check_cell(source, cell, options);
}

}  // namespace

CorpusStatistics read_corpus(const std::vector<Source>& sources, const CorpusOptions& options,
                             const std::function<void(const Document&)>& visit) {
  return read_corpus(sources, options, {}, {}, visit);
}

CorpusStatistics read_corpus(const std::vector<Source>& sources, const CorpusOptions& options, const CorpusStart& start,
                             const std::function<void(const CorpusStart&)>& at_source,
                             const std::function<void(const Document&)>& visit) {
  uint64_t before = 0;
  for (size_t s = 0; s < start.source; ++s) before += sources[s].bytes;
  CorpusReader reader(options, visit, start, before);
  for (size_t s = start.source; s < sources.size(); ++s) {
    if (at_source) at_source(reader.at(s));
    reader.read(sources[s]);
  }
  return reader.finish(sources);
}

void check_encoding(const std::vector<Source>& sources, const CorpusOptions& options) {
  const bool lenient = options.replace_invalid_utf8 || options.conversations;  // whose rows are unusable one by one
  for (const Source& source : sources) {
    if (is_table(source.kind)) {
      check_table(source, options);
      continue;
    }
    if (lenient) continue;
    const auto bytes = open_bytes(source.path);
    if (source.kind == SourceKind::jsonl)
      check_rows(source, options, *bytes);
    else
      check_text(source, *bytes);
  }
}

std::vector<std::string> describe_losses(const CorpusStatistics& corpus) {
  std::vector<std::string> losses;
  if (corpus.bad_rows > 0)
    losses.push_back(cat(corpus.bad_rows, " of ", counted(corpus.rows, "row"), corpus.bad_rows == 1 ? " is" : " are",
                         " unusable and skipped"));
  if (corpus.replaced > 0)
    losses.push_back(cat("U+FFFD replaces ", counted(corpus.replaced, "byte sequence"), " that ",
                         corpus.replaced == 1 ? "is" : "are", " not UTF-8"));
  return losses;
}

}  // namespace witan

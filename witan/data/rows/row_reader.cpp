#include "witan/data/rows/row_reader.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/data/corpus/corpus.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/text/decompress.h"
#include "witan/data/text/encoding.h"

namespace witan {
namespace {

TableColumns whole_rows(const RowOptions& options) {
  return {.text = {}, .row_bytes = options.row_bytes, .whole = true};
}

// The column of a table's row whose encoding was mended, for a message.
std::string mended_column(const std::string& mended) {
  const Json row = Json::parse(mended, nullptr, false);
  if (!row.is_object()) return "";
  for (const auto& [name, value] : row.items())
    if (value.dump().find("\xEF\xBF\xBD") != std::string::npos) return cat("the column ", clipped(name), " ");
  return "";
}

}  // namespace

RowReader::RowReader(RowOptions options) : options_(std::move(options)), parser_(options_.text_key) {}

void RowReader::read(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                     const std::function<void(const UnusableRow&)>& refuse) {
  if (source.kind == SourceKind::jsonl)
    read_lines(source, after, visit, refuse);
  else if (is_table(source.kind))
    read_table(source, after, visit, refuse);
  else if (source.bytes > 0)
    read_documents(source, after, visit);
}

JsonlRow RowReader::check(std::string_view line) {
  return options_.text_key.empty() ? parser_.parse_object(line) : parser_.parse(line);
}

std::string RowReader::check_line(const Source& source, int64_t number, std::string_view line, std::string& mended) {
  mended.clear();
  const JsonlRow row = check(line);
  if (row.good()) return "";
  const size_t at = find_invalid_utf8(line);
  if (at == std::string_view::npos) return row.reason;
  mended = replace_invalid_utf8(line);
  const bool good = check(mended).good();
  if (!good) mended.clear();
  if (!good) return row.reason;
  if (options_.replace_invalid_utf8) return "";
  require<DataError>(!is_table(source.kind), source.path.string(), ": row ", number, ": ", mended_column(mended),
                     "is not UTF-8 text (", clipped(line.substr(at, 1)),
                     "); write the file again without it, or read it with --replace-invalid-utf8 (replaces each such "
                     "sequence by U+FFFD)");
  throw DataError(cat(source.path.string(), ":", number, ": byte ", at, " of the line, ", clipped(line.substr(at, 1)),
                      ", is not UTF-8; ", explain_invalid_utf8(source.path, line, at)));
}

void RowReader::read_lines(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                           const std::function<void(const UnusableRow&)>& refuse) {
  const auto bytes = open_bytes(source.path);
  LineReader lines(*bytes, options_.row_bytes);
  std::string mended;
  while (lines.next()) {
    if (lines.number() <= after) continue;
    std::string_view text = lines.text();
    if (lines.number() == 1 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string reason = lines.too_long() ? cat("the row is longer than ", options_.row_bytes, " bytes")
                                                : check_line(source, lines.number(), text, mended);
    if (!reason.empty())
      refuse({lines.number(), reason, text});
    else
      visit({lines.number(), mended.empty() ? text : std::string_view(mended), bytes->offset()});
  }
}

void RowReader::read_table(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                           const std::function<void(const UnusableRow&)>& refuse) {
  const auto table = open_table(source.path, source.kind, whole_rows(options_));
  std::string line, mended;
  for (TableCell cell; table->next(cell);) {
    if (cell.row <= after) continue;
    line = row_of_table(cell);
    const std::string reason = cell.reason.empty() ? check_line(source, cell.row, line, mended) : cell.reason;
    if (!reason.empty())
      refuse({cell.row, reason, line});
    else
      visit({cell.row, mended.empty() ? line : mended, table->offset()});
  }
}

void RowReader::read_documents(const Source& source, int64_t after, const std::function<void(const Row&)>& visit) {
  CorpusOptions corpus;
  corpus.document_bytes = options_.document_bytes;
  corpus.replace_invalid_utf8 = options_.replace_invalid_utf8;
  int64_t number = 0;
  std::string row;
  read_corpus({source}, corpus, [&](const Document& document) {
    if (++number <= after) return;
    row = row_with_text(options_.text_key.empty() ? "text" : options_.text_key, document.text);
    visit({number, row, document.source_bytes});
  });
}

// JSON allows ends of lines between values only.
std::string row_of_table(const TableCell& cell) {
  std::string line(cell.text);
  for (char& letter : line)
    if (letter == '\n' || letter == '\r') letter = ' ';
  return line;
}

std::string row_with_text(std::string_view key, std::string_view text, std::string_view colon) {
  std::string row, end;
  for (size_t dot; (dot = key.find('.')) != std::string_view::npos; key.remove_prefix(dot + 1)) {
    row.append("{").append(Json(key.substr(0, dot)).dump()).append(colon);
    end += '}';
  }
  return row.append("{").append(Json(key).dump()).append(colon).append(Json(text).dump()).append("}") + end;
}

std::vector<std::string> check_row_sources(const std::vector<Source>& sources, const RowOptions& options) {
  CorpusOptions corpus;
  if (!options.text_key.empty()) corpus.json_key = options.text_key;
  corpus.row_bytes = options.row_bytes;
  corpus.replace_invalid_utf8 = options.replace_invalid_utf8;
  std::vector<Source> lines_and_text;
  std::ranges::copy_if(sources, std::back_inserter(lines_and_text),
                       [](const Source& source) { return !is_table(source.kind); });
  std::vector<std::string> notes = columns_left_out(sources);  // opens the tables
  check_encoding(lines_and_text, corpus);
  return notes;
}

std::vector<std::string> columns_left_out(const std::vector<Source>& sources) {
  std::map<std::string, std::vector<std::string>> files;  // by the columns
  for (const Source& source : sources) {
    if (!is_table(source.kind)) continue;
    const auto table = open_table(source.path, source.kind, {.text = {}, .whole = true});
    std::string columns;
    for (const std::string& name : table->left_out()) columns += (columns.empty() ? "" : ", ") + clipped(name);
    if (!columns.empty()) files[columns].push_back(source.path.string());
  }
  std::vector<std::string> notes;
  for (const auto& [columns, of] : files)
    notes.push_back(cat("JSON has no type for these columns, and the rows are written without them: ", columns, " (",
                        of.front(), of.size() > 1 ? cat(" and ", of.size() - 1, " more") : "", ")"));
  return notes;
}

uint64_t expanded_bytes(const std::vector<Source>& sources) {
  constexpr size_t kSample = 1 << 20, kMostSampled = 64;
  const size_t stride = (sources.size() + kMostSampled - 1) / kMostSampled;
  std::string sample(kSample, '\0');
  double sum = 0, ratio = 1;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (i % stride == 0) {
      const auto bytes = open_bytes(sources[i].path);
      size_t have = 0;
      for (size_t n = 1; n > 0 && have < kSample; have += n) n = bytes->read(sample.data() + have, kSample - have);
      ratio = static_cast<double>(have) / static_cast<double>(std::max<uint64_t>(bytes->offset(), 1));
    }
    sum += static_cast<double>(sources[i].bytes) * std::max(ratio, 1.0);
  }
  return static_cast<uint64_t>(sum);
}

}  // namespace witan

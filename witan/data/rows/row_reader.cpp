#include "witan/data/rows/row_reader.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/data/corpus.h"
#include "witan/data/decompress.h"
#include "witan/data/encoding.h"
#include "witan/data/lines.h"

namespace witan {
namespace {

constexpr std::string_view kByteOrderMarkOfRows = "\xEF\xBB\xBF";

CorpusOptions corpus_options(const RowOptions& options, const std::string& key, const fs::path& quarantine) {
  CorpusOptions corpus;
  corpus.json_key = key;
  corpus.document_bytes = options.document_bytes;
  corpus.row_bytes = options.row_bytes;
  corpus.bad_row_share = 1;  // the caller judges the whole, not one source
  corpus.replace_invalid_utf8 = options.replace_invalid_utf8;
  corpus.quarantine = quarantine;
  constexpr int64_t kAll = int64_t{1} << 60;
  corpus.quarantine_limits.rows = kAll;
  corpus.quarantine_limits.bytes = kAll;
  return corpus;
}

}  // namespace

RowReader::RowReader(RowOptions options, fs::path scratch)
    : options_(std::move(options)), scratch_(std::move(scratch)), parser_(options_.text_key) {}

void RowReader::read(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                     const std::function<void(const UnusableRow&)>& refuse) {
  if (source.kind == SourceKind::jsonl)
    read_lines(source, after, visit, refuse);
  else if (source.bytes > 0)
    read_documents(source, after, visit, refuse);
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
  require<DataError>(options_.replace_invalid_utf8, source.path.string(), ":", number, ": byte ", at, " of the line, ",
                     clipped(line.substr(at, 1)), ", is not UTF-8; ", explain_invalid_utf8(source.path, line, at));
  return "";
}

void RowReader::read_lines(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                           const std::function<void(const UnusableRow&)>& refuse) {
  const auto bytes = open_bytes(source.path);
  LineReader lines(*bytes, options_.row_bytes);
  std::string mended;
  while (lines.next()) {
    if (lines.number() <= after) continue;
    std::string_view text = lines.text();
    if (lines.number() == 1 && text.starts_with(kByteOrderMarkOfRows)) text.remove_prefix(kByteOrderMarkOfRows.size());
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string reason = lines.too_long() ? cat("the row is longer than ", options_.row_bytes, " bytes")
                                                : check_line(source, lines.number(), text, mended);
    if (!reason.empty())
      refuse({lines.number(), reason, text});
    else
      visit({lines.number(), mended.empty() ? text : std::string_view(mended), bytes->offset()});
  }
}

void RowReader::read_documents(const Source& source, int64_t after, const std::function<void(const Row&)>& visit,
                               const std::function<void(const UnusableRow&)>& refuse) {
  const std::string key = options_.text_key.empty() ? "text" : options_.text_key;
  const std::string begin = "{" + Json(key).dump() + ": ";
  int64_t number = 0;
  std::string row;
  read_corpus({source}, corpus_options(options_, key, scratch_), [&](const Document& document) {
    if (++number <= after) return;
    row = begin;
    row += Json(document.text).dump();
    row += '}';
    visit({number, row, document.source_bytes});
  });
  if (!fs::exists(scratch_)) return;
  const auto kept = open_bytes(scratch_);
  LineReader lines(*kept, std::numeric_limits<uint32_t>::max());
  while (lines.next()) {
    const Json entry = parse_json(lines.text(), scratch_.string());
    const auto text = entry.at("row").get<std::string>();
    refuse({entry.at("line").get<int64_t>(), entry.at("reason").get<std::string>(), text});
  }
  fs::remove(scratch_);
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

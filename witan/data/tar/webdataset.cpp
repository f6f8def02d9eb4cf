#include "witan/data/tar/webdataset.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/data/tables/damage.h"
#include "witan/data/tables/json_row.h"
#include "witan/data/tar/tar_reader.h"
#include "witan/data/text/jsonl.h"

namespace witan {
namespace {

// "shard/000012.seg.json" is the file of the ending "seg.json" of the sample "shard/000012". Endings are in lower case,
// as the package webdataset makes them.
struct SampleName {
  std::string_view sample;
  std::string ending;
};

SampleName split_name(std::string_view name) {
  const size_t base = name.rfind('/') + 1;  // 0 without a folder
  const size_t dot = name.find('.', base);
  if (dot == name.npos || dot == base) return {};  // no ending, or hidden
  return {name.substr(0, dot), ascii_lower_case(name.substr(dot + 1))};
}

class WebdatasetRows final : public TableReader {
 public:
  WebdatasetRows(std::string name, std::unique_ptr<ByteReader> bytes, const TableColumns& columns)
      : name_(std::move(name)),
        bytes_(std::move(bytes)),
        archive_(*bytes_),
        columns_(columns),
        text_ending_(ascii_lower_case(columns.text)),
        parser_(columns.text) {}

  bool next(TableCell& cell) override {
    return tables::named([&] { return find_next(cell); },
                         [&] {
                           return cat(name_, ": ",
                                      member_.name.empty() ? "its beginning" : "at or after " + clipped(member_.name));
                         });
  }

  uint64_t offset() const override { return bytes_->offset(); }

 private:
  bool find_next(TableCell& cell) {
    if (!waiting_ && !next_file()) return false;
    const std::string sample(split_name(member_.name).sample);
    text_.reset();
    json_.reset();
    while (waiting_ && split_name(member_.name).sample == sample) {
      take(split_name(member_.name).ending);
      next_file();
    }
    cell = {{}, ++rows_, {}};
    if (columns_.whole)
      choose_whole(cell, sample);
    else
      columns_.json.empty() ? choose_text(cell, sample) : choose_json(cell, sample);
    return true;
  }

  // Moves to the next file of a sample. False at the end.
  bool next_file() {
    do waiting_ = archive_.next(member_);
    while (waiting_ && split_name(member_.name).sample.empty());
    return waiting_;
  }

  void take(std::string_view ending) {
    const bool exact = ending == text_ending_ && !columns_.whole;
    const bool is_text =
        columns_.json.empty() && (exact || (ending == "txt" && (columns_.text == "text" || columns_.whole) && !text_));
    if (!is_text && ending != "json") return;
    std::string& contents = (is_text ? text_ : json_).emplace();
    archive_.read(contents, columns_.row_bytes + 1);  // one more shows that it is too long
  }

  bool too_long(TableCell& cell, const std::string& contents) const {
    if (contents.size() > columns_.row_bytes) cell.reason = cat("it is longer than ", columns_.row_bytes, " bytes");
    return !cell.reason.empty();
  }

  void choose_text(TableCell& cell, const std::string& sample) {
    if (text_) {
      cell.text = *text_;
      too_long(cell, *text_);
      return;
    }
    choose_json(cell, sample);
    if (!cell.reason.empty()) return;
    const JsonlRow row = parser_.parse(*json_);
    cell.reason = row.good() ? "" : cat("sample ", clipped(sample), ": ", row.reason);
    if (row.good()) cell.text = row.text;
  }

  // The text as JSON escapes it, without a judgement on its encoding, which the reader of the row makes. The rest of
  // the .json stays as it stands, unless it has a text of its own, for which the .txt counts.
  void choose_whole(TableCell& cell, const std::string& sample) {
    if (json_ || !text_) choose_json(cell, sample);
    if (!text_ || !cell.reason.empty()) return;
    std::string rest = "}";
    if (json_)
      if (cell.reason = read_rest(rest, sample); !cell.reason.empty()) return;
    tables::JsonRow row(columns_.row_bytes);
    row.begin_object();
    row.key("text");
    row.text(*text_);
    whole_ = row.line() + (rest.starts_with('}') ? "" : ",") + rest;
    cell.text = whole_;
    if (row.too_long()) cell.reason = cat("it is longer than ", columns_.row_bytes, " bytes");
    too_long(cell, whole_);
  }

  // Sets `rest` to the text after the opening bracket of the .json. Returns why there is none, or "".
  std::string read_rest(std::string& rest, const std::string& sample) const try {
    Json object = parse_json(*json_, cat("sample ", clipped(sample)));
    if (!object.is_object()) return cat("sample ", clipped(sample), ": its .json is no object");
    const bool has_text = object.erase("text") > 0;
    rest = has_text ? object.dump().substr(1) : json_->substr(json_->find('{') + 1);
    rest.erase(0, rest.find_first_not_of(" \t\r\n"));
    return "";
  } catch (const CorruptionError& error) {
    return error.what();
  }

  void choose_json(TableCell& cell, const std::string& sample) {
    if (!json_) {
      cell.reason = cat("sample ", clipped(sample), " has no .json",
                        columns_.whole          ? " and no .txt"
                        : columns_.json.empty() ? columns_.text == "text" ? " and no .txt" : " and no ." + columns_.text
                                                : "");
      return;
    }
    cell.text = *json_;
    too_long(cell, *json_);
  }

  std::string name_;
  std::unique_ptr<ByteReader> bytes_;
  tar::TarReader archive_;
  TableColumns columns_;
  std::string text_ending_;
  JsonlParser parser_;
  tar::Member member_;
  bool waiting_ = false;                    // whether the member is a file that was not taken
  std::optional<std::string> text_, json_;  // of the sample
  std::string whole_;                       // its row
  int64_t rows_ = 0;
};

}  // namespace

std::string ascii_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return lower;
}

std::unique_ptr<TableReader> open_webdataset(const fs::path& path, const TableColumns& columns) {
  return read_webdataset(path.string(), open_bytes(path), columns);
}

std::unique_ptr<TableReader> read_webdataset(std::string name, std::unique_ptr<ByteReader> bytes,
                                             const TableColumns& columns) {
  return std::make_unique<WebdatasetRows>(std::move(name), std::move(bytes), columns);
}

}  // namespace witan

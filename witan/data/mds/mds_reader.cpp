#include "witan/data/mds/mds_reader.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/data/tables/damage.h"
#include "witan/data/tables/json_row.h"

namespace witan {

namespace {

using tables::intact;

constexpr uint64_t kMostConfig = 1 << 20;  // bytes

struct MdsColumn {
  std::string name, encoding;
  std::optional<uint32_t> bytes;  // of every value; else each has its size before it
  bool wanted = false;
};

std::vector<MdsColumn> parse_columns(const std::string& config) {
  std::vector<MdsColumn> columns;
  try {
    const Json json = parse_json(config, "its description");
    const Json& names = json.at("column_names");
    const Json& encodings = json.at("column_encodings");
    const Json& sizes = json.at("column_sizes");
    intact(json.at("format") == "mds" && names.size() == encodings.size() && names.size() == sizes.size(),
           "its description is not that of an MDS shard");
    for (size_t i = 0; i < names.size(); ++i) {
      MdsColumn column{names.at(i).get<std::string>(), encodings.at(i).get<std::string>(), std::nullopt};
      if (sizes.at(i).is_number_unsigned() && sizes.at(i) > 0) column.bytes = sizes.at(i).get<uint32_t>();
      columns.push_back(std::move(column));
    }
  } catch (const Json::exception& error) {
    throw tables::Damaged{cat("its description is not that of an MDS shard (", error.what(), ")")};
  } catch (const CorruptionError& error) {
    throw tables::Damaged{error.what()};
  }
  return columns;
}

class MdsRows final : public TableReader {
 public:
  MdsRows(std::string name, std::unique_ptr<ByteReader> bytes, const TableColumns& columns)
      : name_(std::move(name)), bytes_(std::move(bytes)), wanted_(columns), row_(columns.row_bytes) {
    tables::named([&] { read_head(); }, [&] { return name_ + ": head"; });
    choose_columns();
  }

  bool next(TableCell& cell) override {
    if (rows_ + 1 == static_cast<int64_t>(offsets_.size())) return false;
    ++rows_;
    tables::named([&] { read_sample(cell); }, [&] { return cat(name_, ": sample ", rows_ - 1); });
    return true;
  }

  uint64_t offset() const override { return bytes_->offset(); }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> names;
    for (const MdsColumn& column : columns_)
      if (!column.wanted) names.push_back(column.name);
    return names;
  }

 private:
  // u32 samples, u32 offsets of these and of the end, the description.
  void read_head() {
    const uint32_t samples = number();
    offsets_.push_back(number());
    const uint64_t before = 8 + 4 * uint64_t{samples};
    intact(offsets_[0] >= before && offsets_[0] - before <= kMostConfig, samples,
           " samples are declared, and that the first lies at byte ", offsets_[0], ": this is no MDS shard");
    for (uint32_t i = 0; i < samples; ++i) {
      offsets_.push_back(number());
      intact(offsets_[i] <= offsets_[i + 1], "sample ", i, " ends before it begins");
    }
    std::string config;
    read(config, offsets_[0] - before);
    columns_ = parse_columns(config);
  }

  void choose_columns() {
    std::vector<std::string> names;
    bool any = false;
    for (MdsColumn& column : columns_) {
      names.push_back(column.name);
      const std::string& encoding = column.encoding;
      if (!wanted_.as_json()) {
        if (column.name != wanted_.text) continue;
        require<DataError>(encoding == "str" || encoding == "bytes", name_, ": the column ", clipped(column.name),
                           " is encoded as ", clipped(encoding), ", not as text (str); name another with ",
                           wanted_.option);
        column.wanted = true;
      } else {
        const bool is_json = encoding == "str" || encoding == "json" || encoding == "int";
        const bool named = std::ranges::find(wanted_.json, column.name) != wanted_.json.end();
        column.wanted = is_json && (wanted_.whole || named);
      }
      any |= column.wanted;
    }
    if (!any && wanted_.whole) refuse_rows(name_, names);
    if (!any) refuse_column(name_, wanted_, names);
  }

  // The sizes of values without a fixed one, then all values.
  void read_sample(TableCell& cell) {
    const auto at = static_cast<size_t>(rows_ - 1);
    const uint64_t size = offsets_[at + 1] - offsets_[at];
    cell = {{}, rows_, {}};
    if (size > most_bytes()) {
      skip(size);
      cell.reason = cat("the sample is longer than ", most_bytes(), " bytes");
      return;
    }
    read(sample_, size);
    std::string_view rest = sample_;
    sizes_.clear();
    for (const MdsColumn& column : columns_) {
      if (!column.bytes) intact(rest.size() >= sizeof(uint32_t), "it ends within its sizes");
      sizes_.push_back(column.bytes ? *column.bytes : take_number(rest));
    }
    row_.clear();
    row_.begin_object();
    for (size_t c = 0; c < columns_.size(); ++c) {
      intact(sizes_[c] <= rest.size(), "a value of ", sizes_[c], " bytes is declared where ", rest.size(), " are left");
      if (columns_[c].wanted) take_value(columns_[c], rest.substr(0, sizes_[c]), cell);
      rest.remove_prefix(sizes_[c]);
    }
    intact(rest.empty(), "it has ", rest.size(), " bytes after its last value");
    row_.end_object();
    if (wanted_.as_json()) cell.text = row_.line();
    if (cell.text.size() > wanted_.row_bytes || row_.too_long())
      cell.reason = cat("it is longer than ", wanted_.row_bytes, " bytes");
  }

  void take_value(const MdsColumn& column, std::string_view value, TableCell& cell) {
    if (!wanted_.as_json()) {
      cell.text = value;
      return;
    }
    row_.key(column.name);
    if (column.encoding == "json") return row_.json(value);
    if (column.encoding == "str") return row_.text(value);
    int64_t number = 0;
    intact(value.size() == sizeof number, "an integer of ", value.size(), " bytes");
    std::memcpy(&number, value.data(), sizeof number);
    row_.integer(number);
  }

  // A sample may have much else in it.
  uint64_t most_bytes() const { return 16 * wanted_.row_bytes; }

  static uint32_t take_number(std::string_view& bytes) {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
    return value;
  }

  uint32_t number() {
    read(sample_, sizeof(uint32_t));
    std::string_view bytes = sample_;
    return take_number(bytes);
  }

  // Reads in pieces, since a damaged size may claim more than there is.
  void read(std::string& out, uint64_t bytes) {
    constexpr uint64_t kPiece = 1 << 20;
    out.clear();
    while (out.size() < bytes) {
      const size_t have = out.size();
      out.resize(have + std::min<uint64_t>(bytes - have, kPiece));
      const size_t n = bytes_->read(out.data() + have, out.size() - have);
      out.resize(have + n);
      intact(n > 0, "the shard ends early");
    }
  }

  void skip(uint64_t bytes) {
    for (uint64_t left = bytes; left > 0;) {
      const uint64_t some = std::min<uint64_t>(left, 1 << 20);
      read(sample_, some);
      left -= some;
    }
  }

  std::string name_;
  std::unique_ptr<ByteReader> bytes_;
  TableColumns wanted_;
  std::vector<uint32_t> offsets_;
  std::vector<MdsColumn> columns_;
  std::string sample_;
  std::vector<uint32_t> sizes_;  // of the sample's values
  tables::JsonRow row_;
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<TableReader> open_mds(const fs::path& path, const TableColumns& columns) {
  return read_mds(path.string(), open_bytes(path), columns);
}

std::unique_ptr<TableReader> read_mds(std::string name, std::unique_ptr<ByteReader> bytes,
                                      const TableColumns& columns) {
  return std::make_unique<MdsRows>(std::move(name), std::move(bytes), columns);
}

}  // namespace witan

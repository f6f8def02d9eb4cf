#include "witan/data/rows/sorted_run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

constexpr std::string_view kRunMagic = "WITANRUN";
constexpr uint64_t kRunHeader = 16;
using TableRow = std::array<uint64_t, 3>;  // high, low, end

uint32_t range_of(uint64_t high) {
  static_assert(kKeyRanges == 1 << 16);
  return static_cast<uint32_t>(high >> 48);
}

// An open run.
class RunFile {
 public:
  explicit RunFile(const fs::path& path) : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    require<IoError>(file_.is_open(), "cannot open ", path.string(), ": ", std::strerror(errno));
    struct stat status {};
    char magic[8];
    if (::fstat(file_.fd(), &status) != 0 || status.st_size < static_cast<off_t>(kRunHeader)) damaged();
    const auto size = static_cast<uint64_t>(status.st_size);
    read(magic, sizeof magic, 0);
    read(&rows_, sizeof rows_, sizeof magic);
    if (std::string_view(magic, sizeof magic) != kRunMagic || rows_ > (size - kRunHeader) / sizeof(TableRow)) damaged();
    if (end_of(rows_) != size - kRunHeader - rows_ * sizeof(TableRow)) damaged();
  }

  uint64_t rows() const { return rows_; }
  void read_table(uint64_t first, std::vector<TableRow>& out) const {
    read(out.data(), out.size() * sizeof(TableRow), kRunHeader + first * sizeof(TableRow));
  }
  // The end of the bytes of the rows before `row`.
  uint64_t end_of(uint64_t row) const { return row == 0 ? 0 : at(row - 1)[2]; }
  // The first row whose key is in the range `first` or a later one.
  uint64_t lower_bound(uint32_t first) const {
    uint64_t low = 0, high = rows_;
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      if (range_of(at(middle)[0]) < first)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  void read_text(uint64_t begin, uint64_t end, char* out) const {
    read(out, end - begin, kRunHeader + rows_ * sizeof(TableRow) + begin);
  }
  [[noreturn]] void damaged() const {
    throw CorruptionError(
        cat(path_.string(), " is damaged: remove the folder ", path_.parent_path().string(), " to begin anew"));
  }

 private:
  TableRow at(uint64_t row) const {
    TableRow found;
    read(found.data(), sizeof found, kRunHeader + row * sizeof(TableRow));
    return found;
  }
  void read(void* out, uint64_t bytes, uint64_t offset) const {
    char* to = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t n = ::pread(file_.fd(), to, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      require<IoError>(n >= 0, "cannot read ", path_.string(), ": ", std::strerror(errno));
      if (n == 0) damaged();
      to += n;
      offset += static_cast<uint64_t>(n);
      bytes -= static_cast<uint64_t>(n);
    }
  }

  const fs::path& path_;
  Descriptor file_;
  uint64_t rows_ = 0;
};

// The rows that a slice takes from one run.
struct Piece {
  size_t run = 0;
  uint64_t first = 0, last = 0;  // rows
  uint64_t begin = 0, end = 0;   // bytes of text
};

}  // namespace

void RunBuffer::add(RowKey key, std::string_view row) {
  rows_.push_back({key, text_.size(), row.size()});
  text_ += row;
}

void RunBuffer::write(const fs::path& path) {
  std::ranges::sort(rows_, {}, &KeyedRow::key);
  AtomicFile file(path);
  file.write(kRunMagic);
  const uint64_t count = rows_.size();
  file.write(&count, sizeof count);
  uint64_t end = 0;
  for (const KeyedRow& row : rows_) {
    end += row.size;
    const TableRow entry = {row.key.high, row.key.low, end};
    file.write(entry.data(), sizeof entry);
  }
  for (const KeyedRow& row : rows_) file.write(std::string_view(text_).substr(row.begin, row.size));
  file.commit();
  text_.clear();
  rows_.clear();
}

std::vector<uint64_t> SortedRuns::measure() const {
  constexpr uint64_t kAtOnce = 1 << 15;
  std::vector<uint64_t> bytes(kKeyRanges, 0);
  std::vector<TableRow> table;
  for (const fs::path& path : paths_) {
    const RunFile run(path);
    uint64_t end = 0;
    for (uint64_t first = 0; first < run.rows(); first += table.size()) {
      table.resize(std::min(kAtOnce, run.rows() - first));
      run.read_table(first, table);
      for (const TableRow& row : table) {
        if (row[2] < end) run.damaged();
        bytes[range_of(row[0])] += row[2] - std::exchange(end, row[2]) + kRowOverhead;
      }
    }
  }
  return bytes;
}

RunSlice SortedRuns::load(uint32_t first, uint32_t last) const {
  std::vector<Piece> pieces;
  uint64_t bytes = 0, rows = 0;
  for (size_t i = 0; i < paths_.size(); ++i) {
    const RunFile run(paths_[i]);
    Piece piece{i, run.lower_bound(first), last == kKeyRanges ? run.rows() : run.lower_bound(last), 0, 0};
    if (piece.first == piece.last) continue;
    piece.begin = run.end_of(piece.first);
    piece.end = run.end_of(piece.last);
    if (piece.begin > piece.end) run.damaged();
    bytes += piece.end - piece.begin;
    rows += piece.last - piece.first;
    pieces.push_back(piece);
  }
  RunSlice slice;
  slice.rows.reserve(rows);
  slice.text = std::make_unique_for_overwrite<char[]>(bytes);
  std::vector<TableRow> table;
  uint64_t at = 0;
  for (const Piece& piece : pieces) {
    const RunFile run(paths_[piece.run]);
    table.resize(piece.last - piece.first);
    run.read_table(piece.first, table);
    run.read_text(piece.begin, piece.end, slice.text.get() + at);
    uint64_t begin = piece.begin;
    for (const TableRow& row : table) {
      if (row[2] < begin || row[2] > piece.end) run.damaged();
      slice.rows.push_back({{row[0], row[1]}, at + begin - piece.begin, row[2] - begin});
      begin = row[2];
    }
    at += piece.end - piece.begin;
  }
  std::ranges::sort(slice.rows, {}, &KeyedRow::key);
  return slice;
}

}  // namespace witan

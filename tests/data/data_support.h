// Helpers for tests of data: files, archives and datasets in memory.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/files/file.h"
#include "witan/data/datasets/token_dataset.h"

namespace witan {

using test::message_of;
using test::TempFolder;

inline fs::path put(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  fs::remove(path);  // some file systems flush a file that is truncated in place
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

inline fs::path golden(const std::string& name) {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/data" / name;
}

// Documents in memory. Their column "half" has half of each token's id.
class MemoryDataset final : public TokenDataset {
 public:
  explicit MemoryDataset(std::vector<std::vector<int32_t>> documents) : documents_(std::move(documents)) {}

  // Documents of the given lengths with tokens 0, 1, 2, ... throughout.
  static std::shared_ptr<const MemoryDataset> counting(const std::vector<int64_t>& lengths) {
    std::vector<std::vector<int32_t>> documents;
    int32_t next = 0;
    for (const int64_t length : lengths) {
      documents.emplace_back();
      for (int64_t i = 0; i < length; ++i) documents.back().push_back(next++);
    }
    return std::make_shared<const MemoryDataset>(std::move(documents));
  }

  int64_t documents() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t tokens() const override {
    int64_t sum = 0;
    for (const auto& document : documents_) sum += static_cast<int64_t>(document.size());
    return sum;
  }
  int64_t length(int64_t document) const override {
    return static_cast<int64_t>(documents_.at(static_cast<size_t>(document)).size());
  }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    const auto& from = documents_.at(static_cast<size_t>(document));
    for (size_t i = 0; i < out.size(); ++i) out[i] = from.at(static_cast<size_t>(begin) + i);
  }
  std::string name() const override { return "memory"; }
  std::vector<ColumnSpec> columns() const override { return {{"half"}}; }
  void read_column(const ColumnSpec&, int64_t document, int64_t begin, std::span<float> out) const override {
    std::vector<int32_t> tokens(out.size());
    read(document, begin, tokens);
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(tokens[i]) / 2;
  }

 private:
  std::vector<std::vector<int32_t>> documents_;
};

inline std::vector<int32_t> read_document(const TokenDataset& dataset, int64_t document) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.length(document)));
  dataset.read(document, 0, tokens);
  return tokens;
}

inline std::vector<std::vector<int32_t>> read_all(const TokenDataset& dataset) {
  std::vector<std::vector<int32_t>> all;
  for (int64_t d = 0; d < dataset.documents(); ++d) all.push_back(read_document(dataset, d));
  return all;
}

// Compress with the original libraries.
inline std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

}  // namespace witan

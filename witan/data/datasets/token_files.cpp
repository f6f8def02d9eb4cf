#include "witan/data/datasets/token_files.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <limits>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/numbers/little_endian.h"
#include "witan/base/text.h"
#include "witan/data/datasets/token_dataset.h"

namespace witan {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";

// The text after 'KEY': in the description, a Python literal that NumPy always writes the same way.
std::string_view behind_key(std::string_view description, std::string_view key) {
  const std::string quoted = cat("'", key, "': ");
  const size_t at = description.find(quoted);
  return at == description.npos ? std::string_view() : description.substr(at + quoted.size());
}

// The one size of a shape "(N,)"; nothing for others.
std::optional<int64_t> only_size(std::string_view shape) {
  int64_t size = 0;
  if (!shape.starts_with('(')) return std::nullopt;
  const auto end = std::from_chars(shape.data() + 1, shape.data() + shape.size(), size);
  const std::string_view rest(end.ptr, static_cast<size_t>(shape.data() + shape.size() - end.ptr));
  if (end.ec != std::errc() || size < 0 || !rest.starts_with(",)")) return std::nullopt;
  return size;
}

}  // namespace

NpyTokens::NpyTokens(const fs::path& path, std::optional<int32_t> end_of_text) : file_(path) {
  if (file_.text().starts_with(kNpyMagic))
    read_header();
  else
    guess_width();
  const int64_t bytes = static_cast<int64_t>(file_.bytes().size()) - header_;
  require<CorruptionError>(bytes % width_ == 0, name(), ": byte ", header_, ": ", bytes,
                           " bytes are no whole number of ", width_, "-byte tokens; copy or download the file again");
  const int64_t count = bytes / width_;
  begins_ = {0};
  if (end_of_text) find_documents(*end_of_text, count);
  if (begins_.back() < count || count == 0) begins_.push_back(count);
  expect_random_reads(file_.bytes());  // from here on
}

// NumPy's format, versions 1 to 3: magic, version, the description's length in 2 or 4 bytes, the description.
void NpyTokens::read_header() {
  const std::string_view text = file_.text();
  const size_t width_at = kNpyMagic.size() + 2;
  require<CorruptionError>(text.size() >= width_at + 4, name(), ": byte ", text.size(),
                           ": the file ends inside NumPy's header");
  const bool wide = text[kNpyMagic.size()] > 1;
  const std::byte* at = file_.bytes().data() + width_at;
  const size_t begin = width_at + (wide ? 4 : 2), length = wide ? load<uint32_t>(at) : load<uint16_t>(at);
  require<CorruptionError>(length <= text.size() - begin, name(), ": byte ", width_at, ": a header of ", length,
                           " bytes, the file has ", text.size());
  const std::string_view description = text.substr(begin, length);
  header_ = static_cast<int64_t>(begin + length);
  const std::string_view type = behind_key(description, "descr");
  width_ = type.starts_with("'<u2'") ? 2 : type.starts_with("'<u4'") ? 4 : 0;
  const auto size = only_size(behind_key(description, "shape"));
  require<DataError>(width_ != 0 && size, name(), ": the array ", clipped(description),
                     " holds no tokens: wanted one dimension of <u2 or <u4");
  require<CorruptionError>(
      *size <= std::numeric_limits<int64_t>::max() / 8 && header_ + *size * width_ == static_cast<int64_t>(text.size()),
      name(), ": byte ", begin, ": the header says ", *size, " tokens of ", width_, " bytes, the file has ",
      text.size(), " bytes");
}

void NpyTokens::guess_width() {
  constexpr int64_t kSeen = 1 << 16;
  constexpr uint16_t kMostUpper = 31;  // vocabularies of 2^21
  const auto bytes = static_cast<int64_t>(file_.bytes().size());
  const auto upper = [&](int64_t i) { return load<uint16_t>(file_.bytes().data() + 4 * i + 2); };
  uint16_t most = 0;
  for (int64_t i = 0; i < std::min(bytes / 4, kSeen); ++i) most = std::max(most, upper(i));
  width_ = bytes % 4 == 0 && most <= kMostUpper ? 4 : 2;
}

void NpyTokens::find_documents(int32_t end_of_text, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (token(i) == end_of_text) begins_.push_back(i + 1);
}

int64_t NpyTokens::token(int64_t index) const {
  const std::byte* at = file_.bytes().data() + header_ + index * width_;
  return width_ == 2 ? int64_t{load<uint16_t>(at)} : int64_t{load<uint32_t>(at)};
}

int64_t NpyTokens::length(int64_t document) const {
  const auto d = static_cast<size_t>(document);
  return begins_[d + 1] - begins_[d];
}

void NpyTokens::read(int64_t document, int64_t offset, std::span<int32_t> out) const {
  assert(document >= 0 && document < documents());
  assert(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= length(document));
  int64_t index = begins_[static_cast<size_t>(document)] + offset;
  for (int32_t& slot : out) {
    const int64_t id = token(index);
    require<CorruptionError>(id <= std::numeric_limits<int32_t>::max(), name(), ": byte ", header_ + index * width_,
                             ": token id ", id, " is above 2^31 - 1");
    slot = static_cast<int32_t>(id);
    ++index;
  }
}

void NpyTokens::prefetch(int64_t document, int64_t offset, int64_t tokens) const {
  const int64_t first = header_ + (begins_[static_cast<size_t>(document)] + offset) * width_;
  read_ahead(file_.bytes().subspan(static_cast<size_t>(first), static_cast<size_t>(tokens * width_)));
}

namespace {

constexpr int64_t kTokenHeaderBytes = 256 * 4;

// The formats in use: magic, version, bytes per token.
struct Version {
  int32_t magic, version;
  int64_t width;
};
constexpr Version kVersions[] = {{20240520, 1, 2}, {20240801, 7, 4}};

}  // namespace

TokenBin::TokenBin(const fs::path& path, std::optional<int32_t> end_of_text) : file_(path) {
  check_header();
  if (end_of_text) find_documents(*end_of_text);
  expect_random_reads(file_.bytes());  // from here on
}

void TokenBin::check_header() {
  const auto size = static_cast<int64_t>(file_.bytes().size());
  const auto fail = [&](int64_t offset, const auto&... pieces) {
    throw CorruptionError(cat(name(), ": byte ", offset, ": ", pieces...));
  };
  constexpr const char* kOthers =
      " (a Megatron .bin needs its .idx beside it; nanoGPT's .bin, uint16 tokens without a header, is read under a "
      "name "
      "in .npy)";
  if (size < kTokenHeaderBytes) fail(size, "the file ends inside its header of ", kTokenHeaderBytes, " bytes", kOthers);
  const auto field = [&](int i) { return load<int32_t>(file_.bytes().data() + i * 4); };
  for (const Version& v : kVersions)
    if (field(0) == v.magic && field(1) == v.version) width_ = v.width;
  if (width_ == 0)
    fail(0, "magic ", field(0), " with version ", field(1),
         " is not that of a token file; wanted 20240520 with 1 or 20240801 with 7", kOthers);
  const int64_t count = field(2);
  if (count < 0 || size != kTokenHeaderBytes + count * width_)
    fail(8, "the header says ", count, " tokens of ", width_, " bytes, so the file must have ",
         kTokenHeaderBytes + count * width_, " bytes; it has ", size);
  begins_ = {0, count};
}

void TokenBin::find_documents(int32_t end_of_text) {
  const int64_t count = begins_.back();
  begins_ = {0};
  for (int64_t i = 1; i < count; ++i)
    if (token(i) == end_of_text) begins_.push_back(i);
  begins_.push_back(count);
}

int64_t TokenBin::token(int64_t index) const {
  const std::byte* at = file_.bytes().data() + kTokenHeaderBytes + index * width_;
  return width_ == 2 ? int64_t{load<uint16_t>(at)} : int64_t{load<uint32_t>(at)};
}

int64_t TokenBin::length(int64_t document) const {
  const auto d = static_cast<size_t>(document);
  return begins_[d + 1] - begins_[d];
}

void TokenBin::read(int64_t document, int64_t offset, std::span<int32_t> out) const {
  assert(document >= 0 && document < documents());
  assert(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= length(document));
  int64_t index = begins_[static_cast<size_t>(document)] + offset;
  for (int32_t& slot : out) {
    const int64_t id = token(index);
    require<CorruptionError>(id <= std::numeric_limits<int32_t>::max(), name(), ": byte ",
                             kTokenHeaderBytes + index * width_, ": token id ", id, " is above 2^31 - 1");
    slot = static_cast<int32_t>(id);
    ++index;
  }
}

void TokenBin::prefetch(int64_t document, int64_t offset, int64_t tokens) const {
  const int64_t first = kTokenHeaderBytes + (begins_[static_cast<size_t>(document)] + offset) * width_;
  read_ahead(file_.bytes().subspan(static_cast<size_t>(first), static_cast<size_t>(tokens * width_)));
}

}  // namespace witan

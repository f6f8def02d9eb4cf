#include "witan/data/datasets/token_bin.h"

#include <cassert>
#include <limits>

#include "witan/base/error.h"
#include "witan/base/numbers/little_endian.h"
#include "witan/data/datasets/token_dataset.h"

namespace witan {
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

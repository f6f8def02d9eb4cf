#include "witan/data/parquet/values.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "witan/data/parquet/packed_integers.h"
#include "witan/data/tables/damage.h"

namespace witan::parquet {

using tables::intact;
using tables::Unsupported;

namespace {

// The format's numbers.
enum : int32_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
  kByteStreamSplit = 9
};

constexpr const char* kTooFew = "it has fewer values than its header says";

size_t width_of(Physical physical) {
  return physical == Physical::int32 || physical == Physical::float32 ? 4 : 8;
}

// `bytes` has the width of the type.
Value number(Physical physical, const char* bytes) {
  Value value;
  if (physical == Physical::int32) {
    int32_t narrow = 0;
    std::memcpy(&narrow, bytes, sizeof narrow);
    value.integer = narrow;
  } else if (physical == Physical::float32) {
    float narrow = 0;
    std::memcpy(&narrow, bytes, sizeof narrow);
    value.real = narrow;
  } else if (physical == Physical::float64) {
    std::memcpy(&value.real, bytes, sizeof value.real);
  } else {
    std::memcpy(&value.integer, bytes, sizeof value.integer);
  }
  return value;
}

class PlainBytes final : public ValueReader {
 public:
  explicit PlainBytes(std::string_view page) : page_(page) {}

  Value next() override {
    uint32_t length = 0;
    intact(page_.size() >= sizeof length, kTooFew);
    std::memcpy(&length, page_.data(), sizeof length);
    page_.remove_prefix(sizeof length);
    intact(length <= page_.size(), "a value of ", length, " bytes is declared where ", page_.size(), " are left");
    Value value;
    value.bytes = page_.substr(0, length);
    page_.remove_prefix(length);
    return value;
  }

 private:
  std::string_view page_;
};

class PlainNumbers final : public ValueReader {
 public:
  PlainNumbers(Physical physical, std::string_view page)
      : physical_(physical), width_(width_of(physical)), page_(page) {}

  Value next() override {
    intact(page_.size() >= width_, kTooFew);
    const Value value = number(physical_, page_.data());
    page_.remove_prefix(width_);
    return value;
  }

 private:
  Physical physical_;
  size_t width_;
  std::string_view page_;
};

class PlainBooleans final : public ValueReader {
 public:
  explicit PlainBooleans(std::string_view page) : page_(page) {}

  Value next() override {
    intact(at_ / 8 < page_.size(), kTooFew);
    Value value;
    value.boolean = static_cast<unsigned char>(page_[at_ / 8]) >> at_ % 8 & 1;
    ++at_;
    return value;
  }

 private:
  std::string_view page_;
  uint64_t at_ = 0;
};

class RleBooleans final : public ValueReader {
 public:
  explicit RleBooleans(std::string_view page) {
    uint32_t length = 0;
    intact(page.size() >= sizeof length, kTooFew);
    std::memcpy(&length, page.data(), sizeof length);
    intact(length <= page.size() - sizeof length, kTooFew);
    runs_ = HybridReader(page.substr(sizeof length, length), 1);
  }

  Value next() override {
    uint32_t bit = 0;
    runs_.read({&bit, 1});
    Value value;
    value.boolean = bit != 0;
    return value;
  }

 private:
  HybridReader runs_;
};

class DictionaryValues final : public ValueReader {
 public:
  DictionaryValues(std::string_view page, const std::vector<Value>& dictionary) : dictionary_(dictionary) {
    if (page.empty()) return;  // of nulls alone
    indices_ = HybridReader(page.substr(1), static_cast<unsigned char>(page.front()));
  }

  Value next() override {
    uint32_t index = 0;
    indices_.read({&index, 1});
    intact(index < dictionary_.size(), "it points to entry ", index, " of a dictionary of ", dictionary_.size());
    return dictionary_[index];
  }

 private:
  const std::vector<Value>& dictionary_;
  HybridReader indices_;
};

class DeltaNumbers final : public ValueReader {
 public:
  DeltaNumbers(Physical physical, std::string_view page) : narrow_(physical == Physical::int32), numbers_(page) {}

  Value next() override {
    Value value;
    value.integer = numbers_.next();
    if (narrow_) value.integer = static_cast<int32_t>(static_cast<uint32_t>(value.integer));  // sums wrap at 32 bits
    return value;
  }

 private:
  bool narrow_;
  DeltaReader numbers_;
};

// DELTA_LENGTH_BYTE_ARRAY: all lengths, then all bytes.
class DeltaLengthBytes final : public ValueReader {
 public:
  explicit DeltaLengthBytes(std::string_view page) : lengths_(page), bytes_(page.substr(lengths_.length())) {}

  Value next() override {
    const int64_t length = lengths_.next();
    intact(length >= 0 && static_cast<uint64_t>(length) <= bytes_.size(), "a value of ", length,
           " bytes is declared where ", bytes_.size(), " are left");
    Value value;
    value.bytes = bytes_.substr(0, static_cast<size_t>(length));
    bytes_.remove_prefix(static_cast<size_t>(length));
    return value;
  }

 private:
  DeltaReader lengths_;
  std::string_view bytes_;
};

// DELTA_BYTE_ARRAY: how many bytes a value shares with the one before it, then the rests.
class DeltaBytes final : public ValueReader {
 public:
  explicit DeltaBytes(std::string_view page) : prefixes_(page), rests_(page.substr(prefixes_.length())) {}

  Value next() override {
    const int64_t prefix = prefixes_.next();
    intact(prefix >= 0 && static_cast<uint64_t>(prefix) <= last_.size(), "a value shares ", prefix,
           " bytes with one of ", last_.size());
    last_.resize(static_cast<size_t>(prefix));
    last_ += rests_.next().bytes;
    Value value;
    value.bytes = last_;
    return value;
  }

 private:
  DeltaReader prefixes_;
  DeltaLengthBytes rests_;
  std::string last_;
};

// BYTE_STREAM_SPLIT: the first bytes of all values, then their second ones, and so on.
class SplitNumbers final : public ValueReader {
 public:
  SplitNumbers(Physical physical, std::string_view page)
      : physical_(physical), width_(width_of(physical)), page_(page), count_(page.size() / width_) {
    intact(page.size() % width_ == 0, "its ", page.size(), " bytes are no multiple of ", width_);
  }

  Value next() override {
    intact(at_ < count_, kTooFew);
    std::array<char, 8> bytes{};
    for (size_t i = 0; i < width_; ++i) bytes[i] = page_[i * count_ + at_];
    ++at_;
    return number(physical_, bytes.data());
  }

 private:
  Physical physical_;
  size_t width_;
  std::string_view page_;
  size_t count_, at_ = 0;
};

std::unique_ptr<ValueReader> read_bytes(int32_t encoding, std::string_view page) {
  switch (encoding) {
    case kPlain:
      return std::make_unique<PlainBytes>(page);
    case kDeltaLengthByteArray:
      return std::make_unique<DeltaLengthBytes>(page);
    case kDeltaByteArray:
      return std::make_unique<DeltaBytes>(page);
    default:
      return {};
  }
}

std::unique_ptr<ValueReader> read_numbers(int32_t encoding, Physical physical, std::string_view page) {
  const bool integers = physical == Physical::int32 || physical == Physical::int64;
  switch (encoding) {
    case kPlain:
      return std::make_unique<PlainNumbers>(physical, page);
    case kDeltaBinaryPacked:
      if (!integers) return {};
      return std::make_unique<DeltaNumbers>(physical, page);
    case kByteStreamSplit:
      return std::make_unique<SplitNumbers>(physical, page);
    default:
      return {};
  }
}

std::unique_ptr<ValueReader> read_booleans(int32_t encoding, std::string_view page) {
  if (encoding == kPlain) return std::make_unique<PlainBooleans>(page);
  if (encoding == kRle) return std::make_unique<RleBooleans>(page);
  return {};
}

std::unique_ptr<ValueReader> read_direct(int32_t encoding, Physical physical, std::string_view page) {
  if (physical == Physical::byte_array) return read_bytes(encoding, page);
  if (physical == Physical::boolean) return read_booleans(encoding, page);
  if (physical == Physical::int96 || physical == Physical::fixed_bytes) return {};
  return read_numbers(encoding, physical, page);
}

}  // namespace

std::unique_ptr<ValueReader> read_values(int32_t encoding, Physical physical, std::string_view page,
                                         const std::vector<Value>& dictionary) {
  if (encoding == kPlainDictionary || encoding == kRleDictionary)
    return std::make_unique<DictionaryValues>(page, dictionary);
  auto reader = read_direct(encoding, physical, page);
  if (!reader)
    throw Unsupported{cat("values of type ", static_cast<int>(physical), " in encoding ", encoding,
                          " are not read; write the file again with another (plain, dictionary, delta)")};
  return reader;
}

std::vector<Value> read_dictionary(int32_t encoding, Physical physical, std::string_view page, uint32_t count) {
  intact(encoding == kPlain || encoding == kPlainDictionary, "a dictionary in encoding ", encoding);
  intact(count <= page.size() * 8, "a dictionary of ", count, " values in ", page.size(), " bytes");
  const auto reader = read_direct(kPlain, physical, page);
  if (!reader) throw Unsupported{cat("a dictionary of values of type ", static_cast<int>(physical), " is not read")};
  std::vector<Value> values;
  values.reserve(std::min<size_t>(count, page.size() / 4 + 1));
  for (uint32_t i = 0; i < count; ++i) values.push_back(reader->next());
  return values;
}

}  // namespace witan::parquet

#include "witan/formats/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMostEntries = uint64_t{1} << 24;  // in an array; vocabularies stay far below
constexpr uint64_t kLongestKey = 65535, kLongestName = 1024;
constexpr uint32_t kMostDims = 4;
constexpr std::string_view kAlignmentKey = "general.alignment";

constexpr std::array<GgmlType, 34> kTypes{{
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
}};

uint64_t width_of(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::flag:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    default:
      return 8;  // the length before a text
  }
}

// Reads the header from front to back.
class GgufReader {
 public:
  GgufReader(std::span<const std::byte> file, std::string source) : file_(file), source_(std::move(source)) {}

  template <class T>
  T number() {
    if (left() < sizeof(T)) corrupt("the file ends within a number");
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text(uint64_t most, const char* what) {
    const auto length = number<uint64_t>();
    if (length > left()) corrupt(what, " says that it has ", length, " bytes, of ", left(), " left");
    if (length > most) corrupt(what, " has ", length, " bytes, more than ", most);
    std::string bytes(reinterpret_cast<const char*>(file_.data() + at_), length);
    at_ += length;
    return bytes;
  }
  GgufType type(const std::string& key) {
    const auto number_of_type = number<uint32_t>();
    if (number_of_type > static_cast<uint32_t>(GgufType::f64))
      corrupt("\"", clipped(key), "\" has the type ", number_of_type);
    return static_cast<GgufType>(number_of_type);
  }
  GgufValue value(const std::string& key) {
    GgufValue out{.type = type(key)};
    uint64_t count = 1;
    if (out.type == GgufType::array) {
      out.array = true;
      out.type = type(key);
      if (out.type == GgufType::array)
        corrupt("\"", clipped(key), "\" is an array of arrays, which Witan does not read");
      count = number<uint64_t>();
      if (count > kMostEntries || count * width_of(out.type) > left())
        corrupt("\"", clipped(key), "\" says that it has ", count, " entries, of ", left(), " bytes left");
    }
    for (uint64_t i = 0; i < count; ++i) put_next(out, key);
    return out;
  }

  size_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }
  template <class... Words>
  [[noreturn]] void corrupt(const Words&... words) const {
    throw CorruptionError(
        cat(source_, ": not a GGUF file, or a damaged one: ", words..., " (byte ", at_, "); download it again"));
  }

 private:
  void put_next(GgufValue& out, const std::string& key) {
    switch (out.type) {
      case GgufType::u8:
        return out.integers.push_back(number<uint8_t>());
      case GgufType::i8:
        return out.integers.push_back(number<int8_t>());
      case GgufType::u16:
        return out.integers.push_back(number<uint16_t>());
      case GgufType::i16:
        return out.integers.push_back(number<int16_t>());
      case GgufType::u32:
        return out.integers.push_back(number<uint32_t>());
      case GgufType::i32:
        return out.integers.push_back(number<int32_t>());
      case GgufType::i64:
        return out.integers.push_back(number<int64_t>());
      case GgufType::u64:
        return out.integers.push_back(static_cast<int64_t>(number<uint64_t>()));
      case GgufType::flag: {
        const auto value = number<uint8_t>();
        if (value > 1) corrupt("\"", clipped(key), "\" is neither true nor false but ", int{value});
        return out.integers.push_back(value);
      }
      case GgufType::f32:
        return out.numbers.push_back(static_cast<double>(number<float>()));
      case GgufType::f64:
        return out.numbers.push_back(number<double>());
      default:
        return out.texts.push_back(text(UINT64_MAX, "a text"));
    }
  }

  std::span<const std::byte> file_;
  std::string source_;
  size_t at_ = 0;
};

uint64_t aligned(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

GgufTensor read_tensor(GgufReader& reader, uint64_t data_at, uint64_t alignment) {
  GgufTensor tensor{reader.text(kLongestName, "a tensor's name"), {}, nullptr};
  const auto dims = reader.number<uint32_t>();
  const std::string name = cat("\"", clipped(tensor.name), "\"");
  if (dims == 0 || dims > kMostDims) reader.corrupt(name, " has ", dims, " dims, not 1 to ", kMostDims);
  uint64_t elements = 1;
  for (uint32_t dim = 0; dim < dims; ++dim) {
    const auto size = reader.number<uint64_t>();
    if (size == 0 || size > (uint64_t{1} << 60) / elements)
      reader.corrupt(name, " has a dim of ", size, ", with which it cannot be stored");
    elements *= size;
    tensor.dims.insert(tensor.dims.begin(), static_cast<int64_t>(size));
  }
  const auto type = reader.number<uint32_t>();
  tensor.type = ggml_type(type);
  if (tensor.type == nullptr) reader.corrupt(name, " has the type ", type, ", which is none of ggml's that are known");
  if (tensor.dims.back() % tensor.type->block != 0)
    reader.corrupt(name, " is ", tensor.type->name, " but its rows of ", tensor.dims.back(), " are not blocks of ",
                   tensor.type->block);
  const auto offset = reader.number<uint64_t>();
  if (offset != aligned(data_at, alignment))
    reader.corrupt(name, " is said to begin at ", offset, " of the data, not after the previous tensor at ",
                   aligned(data_at, alignment));
  return tensor;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& out, std::string_view text) {
  append<uint64_t>(out, text.size());
  out += text;
}

void append_entry(std::string& out, const GgufValue& value, size_t i) {
  switch (value.type) {
    case GgufType::text:
      return append_text(out, value.texts[i]);
    case GgufType::f32:
      return append(out, static_cast<float>(value.numbers[i]));
    case GgufType::f64:
      return append(out, value.numbers[i]);
    default:  // little-endian: the lower bytes come first
      out.append(reinterpret_cast<const char*>(&value.integers[i]), width_of(value.type));
  }
}

void append_value(std::string& out, const std::string& key, const GgufValue& value) {
  const size_t count = value.integers.size() + value.numbers.size() + value.texts.size();
  append_text(out, key);
  if (value.array) append(out, static_cast<uint32_t>(GgufType::array));
  append(out, static_cast<uint32_t>(value.type));
  if (value.array) append<uint64_t>(out, count);
  for (size_t i = 0; i < count; ++i) append_entry(out, value, i);
}

}  // namespace

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

const GgmlType* ggml_type(uint32_t number) {
  const auto* found = std::ranges::find(kTypes, number, &GgmlType::number);
  return found == kTypes.end() ? nullptr : found;
}

const GgmlType* ggml_type(std::string_view name) {
  const auto* found = std::ranges::find(kTypes, name, &GgmlType::name);
  return found == kTypes.end() ? nullptr : found;
}

int64_t GgufTensor::elements() const {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void GgufMetadata::refuse(std::string_view key, const char* what) const {
  throw CorruptionError(cat(source_, ": ", clipped(key), " must be ", what));
}

// Whether one of the integers exceeds int64_t.
static bool is_huge(const GgufValue& value) {
  return value.type == GgufType::u64 && std::ranges::any_of(value.integers, [](int64_t bits) { return bits < 0; });
}

// The entries of an array must all be equal.
const GgufValue* GgufMetadata::single(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || !value->array) return value;
  const auto uniform = [](const auto& all) {
    return std::ranges::all_of(all, [&](const auto& one) { return one == all.front(); });
  };
  if (value->integers.empty() && value->numbers.empty() && value->texts.empty())
    refuse(key, "a value, not an empty array");
  if (!uniform(value->integers) || !uniform(value->numbers) || !uniform(value->texts))
    refuse(key, "one value: Witan has the same for all layers");
  return value;
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* value = single(key);
  if (value == nullptr) return std::nullopt;
  if (value->integers.empty() || value->type == GgufType::flag) refuse(key, "a whole number");
  if (is_huge(*value)) refuse(key, "a whole number below 2^63");
  return value->integers.front();
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = single(key);
  if (value == nullptr) return std::nullopt;
  if (!value->integers.empty() && value->type != GgufType::flag)
    return is_huge(*value) ? static_cast<double>(static_cast<uint64_t>(value->integers.front()))
                           : static_cast<double>(value->integers.front());
  if (value->numbers.empty()) refuse(key, "a number");
  const double found = value->numbers.front();
  if (value->type != GgufType::f32) return found;
  char shortest[32];
  const auto end = std::to_chars(shortest, shortest + sizeof shortest, static_cast<float>(found)).ptr;
  double decimal = found;
  std::from_chars(shortest, end, decimal);
  return decimal;
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  const GgufValue* value = single(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::flag) refuse(key, "true or false");
  return value->integers.front() != 0;
}

std::optional<std::string> GgufMetadata::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::text || value->array) refuse(key, "a text");
  return value->texts.front();
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  if (!value->array || !value->numbers.empty() || !value->texts.empty()) refuse(key, "an array of whole numbers");
  if (is_huge(*value)) refuse(key, "an array of whole numbers below 2^63");
  return value->integers;
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  if (!value->array || !value->integers.empty() || !value->texts.empty()) refuse(key, "an array of numbers");
  return value->numbers;
}

std::vector<std::string> GgufMetadata::texts(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  if (!value->array || value->type != GgufType::text) refuse(key, "an array of texts");
  return value->texts;
}

GgufFile::GgufFile(const fs::path& path) : path_(path), file_(path), metadata_(path.string()) {
  GgufReader reader(file_.bytes(), path.string());
  if (!looks_like_gguf(file_.text())) reader.corrupt("it does not begin with GGUF");
  reader.number<uint32_t>();
  const auto version = reader.number<uint32_t>();
  require<DataError>((version & 0xFFFF) != 0, path.string(),
                     ": a big-endian GGUF file; Witan reads little-endian ones: "
                     "download that one, or convert it with gguf_convert_endian.py of llama.cpp");
  require<DataError>(version == 2 || version == 3, path.string(), ": GGUF version ", version,
                     "; Witan reads versions 2 and 3: convert the model with a llama.cpp of today");
  const auto tensors = reader.number<uint64_t>(), values = reader.number<uint64_t>();
  for (uint64_t i = 0; i < values; ++i) {
    const std::string key = reader.text(kLongestKey, "a key");
    if (metadata_.find(key) != nullptr) reader.corrupt("the key \"", clipped(key), "\" appears twice");
    metadata_.put(key, reader.value(key));
  }
  const int64_t alignment = metadata_.integer(kAlignmentKey).value_or(kGgufAlignment);
  if (alignment < 1 || alignment > (1 << 20) || !std::has_single_bit(static_cast<uint64_t>(alignment)))
    reader.corrupt(kAlignmentKey, " = ", alignment, " is no power of two");
  uint64_t data_at = 0;
  for (uint64_t i = 0; i < tensors; ++i) {
    GgufTensor tensor = read_tensor(reader, data_at, static_cast<uint64_t>(alignment));
    if (!index_.emplace(tensor.name, i).second)
      reader.corrupt("the tensor \"", clipped(tensor.name), "\" appears twice");
    data_at = aligned(data_at, static_cast<uint64_t>(alignment)) + tensor.bytes();
    if (data_at > file_.bytes().size())
      reader.corrupt("\"", clipped(tensor.name), "\" ends at byte ", data_at, " of the data, after the file's end");
    tensors_.push_back({std::move(tensor), {}});
  }
  uint64_t at = aligned(reader.at(), static_cast<uint64_t>(alignment));
  for (Placed& tensor : tensors_) {
    at = aligned(at, static_cast<uint64_t>(alignment));
    const uint64_t bytes = tensor.info.bytes();
    if (at + bytes > file_.bytes().size())
      reader.corrupt("\"", clipped(tensor.info.name), "\" is cut off: it needs ", at + bytes, " bytes, the file has ",
                     file_.bytes().size());
    tensor.bytes = file_.bytes().subspan(at, bytes);
    at += bytes;
  }
  if (file_.bytes().size() > aligned(at, static_cast<uint64_t>(alignment)))
    reader.corrupt("the file has ", file_.bytes().size(), " bytes, but its tensors end at ", at);
}

const GgufFile::Placed* GgufFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

bool looks_like_gguf(std::string_view bytes) {
  return bytes.starts_with(kMagic);
}

bool is_gguf_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return false;
  std::array<char, kMagic.size()> magic{};
  const size_t read = std::fread(magic.data(), 1, magic.size(), file);
  std::fclose(file);
  return looks_like_gguf({magic.data(), read});
}

std::string gguf_header(const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors) {
  constexpr std::string_view kFirst = "general.architecture";
  std::string out(kMagic);
  append<uint32_t>(out, 3);
  append<uint64_t>(out, tensors.size());
  append<uint64_t>(out, metadata.values().size());
  if (const GgufValue* first = metadata.find(kFirst)) append_value(out, std::string(kFirst), *first);
  for (const auto& [key, value] : metadata.values())
    if (key != kFirst) append_value(out, key, value);
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_text(out, tensor.name);
    append(out, static_cast<uint32_t>(tensor.dims.size()));
    for (size_t dim = tensor.dims.size(); dim-- > 0;) append(out, static_cast<uint64_t>(tensor.dims[dim]));
    append(out, tensor.type->number);
    append(out, offset);
    offset += tensor.bytes() + gguf_padding(tensor.bytes());
  }
  out.append(gguf_padding(out.size()), '\0');
  return out;
}

uint64_t gguf_padding(uint64_t bytes) {
  return aligned(bytes, kGgufAlignment) - bytes;
}

}  // namespace witan

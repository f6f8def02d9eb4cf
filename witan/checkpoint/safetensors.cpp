#include "witan/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/json_fields.h"
#include "witan/tensor/host.h"
#include "witan/tensor/split.h"

namespace witan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian, and written from memory");

constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr uint64_t kAlignment = 8;                  // of the data's start in the file
constexpr int kHeaderDepth = 4;                     // header, tensor, list; and one to spare
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<DType, std::string_view>, 5> kNames{
    {{DType::f32, "F32"}, {DType::bf16, "BF16"}, {DType::f64, "F64"}, {DType::i32, "I32"}, {DType::i64, "I64"}}};

uint64_t byte_count(const TensorInfo& info) {
  return static_cast<uint64_t>(info.shape.elements() * size_of(info.dtype));
}

std::vector<TensorInfo> file_order(std::vector<TensorInfo> tensors) {
  std::ranges::stable_sort(tensors, std::greater{}, [](const TensorInfo& info) { return size_of(info.dtype); });
  return tensors;
}

// The length, the JSON and the spaces that align what follows. Keys stand in the order of the file, as others write it.
std::string header_of(const std::vector<TensorInfo>& order, SafetensorsWriter::Metadata metadata,
                      std::string_view where) {
  metadata.emplace("format", "pt");
  nlohmann::ordered_json header;
  header[kMetadata] = metadata;
  std::set<std::string_view> names{kMetadata};
  std::string json = header.dump();
  json.pop_back();  // the closing brace: entries follow one by one, as looking keys up in an ordered object is slow
  uint64_t at = 0;
  for (const TensorInfo& info : order) {
    require<CheckpointError>(names.insert(info.name).second, where, ": two tensors are named \"", clipped(info.name),
                             "\"");
    nlohmann::ordered_json entry = {{"dtype", safetensors_name(info.dtype)},
                                    {"shape", nlohmann::ordered_json::array()}};
    for (int i = 0; i < info.shape.dims(); ++i) entry["shape"].push_back(info.shape[i]);
    const uint64_t end = at + byte_count(info);
    entry["data_offsets"] = {at, end};
    json += cat(',', nlohmann::json(info.name).dump(), ':', entry.dump());
    at = end;
  }
  json += '}';
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  require<CheckpointError>(json.size() <= kMostHeaderBytes, where, ": the header of ", order.size(), " tensors has ",
                           json.size(), " bytes; the format allows ", kMostHeaderBytes);
  const uint64_t length = json.size();
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix + json;
}

uint64_t data_bytes(const std::vector<TensorInfo>& tensors) {
  uint64_t sum = 0;
  for (const TensorInfo& info : tensors) sum += byte_count(info);
  return sum;
}

// One tensor of a header as it was read: offsets from the start of the data.
struct Placed {
  TensorInfo info;
  uint64_t begin = 0, end = 0;
};

Placed parse_entry(const std::string& name, const Json& entry, std::string_view file) {
  const std::string where = cat(file, ": tensor \"", clipped(name), '"');
  require<CheckpointError>(entry.is_object(), where, ": expected an object, found ", entry.type_name());
  const DType dtype = dtype_from_safetensors(text_member(entry, "dtype", where), where);
  Placed placed{{name, dtype, shape_member(entry, "shape", dtype, where)}};
  const Json& offsets = array_member(entry, "data_offsets", where);
  require<CheckpointError>(offsets.size() == 2, where, ": \"data_offsets\" must be [begin, end], found ",
                           offsets.size(), " values");
  placed.begin = static_cast<uint64_t>(integer_from(offsets[0], "begin", where));
  placed.end = static_cast<uint64_t>(integer_from(offsets[1], "end", where));
  const uint64_t expected = byte_count(placed.info);
  require<CheckpointError>(placed.end >= placed.begin && placed.end - placed.begin == expected, where, ": ", dtype, " ",
                           placed.info.shape, " has ", expected, " bytes, its \"data_offsets\" are [", placed.begin,
                           ", ", placed.end, "]");
  return placed;
}

SafetensorsWriter::Metadata parse_metadata(const Json& value, std::string_view file) {
  require<CheckpointError>(value.is_object(), file, ": \"", kMetadata, "\" must be an object");
  SafetensorsWriter::Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    require<CheckpointError>(text.is_string(), file, ": \"", kMetadata, "\": \"", clipped(key), "\" must be a string");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The tensors must cover the data: each begins where the one before it ends.
void check_cover(const std::vector<Placed>& placed, uint64_t data, std::string_view file) {
  uint64_t at = 0;
  for (const Placed& tensor : placed) {
    require<CheckpointError>(tensor.begin == at, file, ": tensor \"", clipped(tensor.info.name), "\" begins at byte ",
                             tensor.begin, " of the data, expected ", at, ": there is ",
                             tensor.begin > at ? "a hole" : "an overlap");
    at = tensor.end;
  }
  require<CheckpointError>(at == data, file, ": the header describes ", at, " bytes of data, the file holds ", data,
                           data < at ? ": it is truncated; copy it again" : ": it has bytes that belong to no tensor");
}

std::string_view header_text(std::span<const std::byte> bytes, std::string_view file) {
  uint64_t length = 0;
  require<CheckpointError>(bytes.size() >= sizeof length, file, ": ", bytes.size(),
                           " bytes are too few for a safetensors file; copy it again");
  std::memcpy(&length, bytes.data(), sizeof length);
  require<CheckpointError>(length <= kMostHeaderBytes, file, ": a header of ", length, " bytes, at most ",
                           kMostHeaderBytes, " are allowed: this is not a safetensors file, or it is damaged");
  require<CheckpointError>(length <= bytes.size() - sizeof length, file, ": a header of ", length,
                           " bytes, the file holds ", bytes.size() - sizeof length,
                           " after its length: it is truncated; copy it again");
  return {reinterpret_cast<const char*>(bytes.data()) + sizeof length, length};
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  return std::ranges::find(kNames, dtype, &std::pair<DType, std::string_view>::first)->second;
}

DType dtype_from_safetensors(std::string_view name, std::string_view where) {
  const auto* found = std::ranges::find(kNames, name, &std::pair<DType, std::string_view>::second);
  require<CheckpointError>(found != kNames.end(), where, ": dtype \"", clipped(name),
                           "\" is not supported, only F32, BF16, F64, I32 and I64 are");
  return found->first;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<TensorInfo> tensors, Metadata metadata)
    : path_(path), order_(file_order(std::move(tensors))), file_(path) {
  const std::string header = header_of(order_, std::move(metadata), path.string());
  file_bytes_ = header.size() + data_bytes(order_);
  hasher_.update(header.data(), header.size());
  file_.write(header);
}

// Throws unless the next tensor has the shape of this one, and the dtype.
void SafetensorsWriter::take_turn(const Tensor& tensor, DType dtype) {
  require<ShapeError>(next_ < order_.size(), "safetensors: ", path_.string(), " has all of its ", order_.size(),
                      " tensors already");
  const TensorInfo& expected = order_[next_];
  require<ShapeError>(
      dtype == expected.dtype && tensor.shape() == expected.shape && tensor.contiguous() && !tensor.is_meta(),
      "safetensors: \"", expected.name, "\" must be contiguous ", expected.dtype, " ", expected.shape,
      " with values, got ", tensor.contiguous() ? "" : "strided ", dtype, " ", tensor.shape(), " on ", tensor.device());
  ++next_;
}

void SafetensorsWriter::append(const std::byte* bytes, int64_t count) {
  hasher_.update(bytes, static_cast<size_t>(count));
  file_.write(bytes, static_cast<size_t>(count));
}

void SafetensorsWriter::write(const Tensor& tensor) {
  take_turn(tensor, tensor.dtype());
  for_host_bytes(tensor, [&](const std::byte* bytes, int64_t count) { append(bytes, count); });
}

void SafetensorsWriter::write(const Tensor& upper, const Tensor& lower) {
  take_turn(upper, DType::f32);
  for_joined_bytes(upper, lower, [&](const std::byte* bytes, int64_t count) { append(bytes, count); });
}

FileDigest SafetensorsWriter::finish() {
  require<ShapeError>(next_ == order_.size(), "safetensors: ", path_.string(), " got ", next_, " of its ",
                      order_.size(), " tensors");
  file_.commit();
  return {file_bytes_, hasher_.hex()};
}

uint64_t safetensors_bytes(const std::vector<TensorInfo>& tensors, const SafetensorsWriter::Metadata& metadata) {
  return header_of(file_order(tensors), metadata, "safetensors").size() + data_bytes(tensors);
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : SafetensorsFile(MappedFile(path)) {}

SafetensorsFile::SafetensorsFile(MappedFile mapped) : file_(std::move(mapped)) {
  const std::string file = file_.path().string();
  const std::string_view text = header_text(file_.bytes(), file);
  const auto data = file_.bytes().subspan(sizeof(uint64_t) + text.size());
  const Json header = parse_object(text, file, kHeaderDepth);
  std::vector<Placed> placed;
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata)
      metadata_ = parse_metadata(entry, file);
    else
      placed.push_back(parse_entry(name, entry, file));
  }
  std::ranges::sort(placed, {}, [](const Placed& tensor) { return std::pair{tensor.begin, tensor.end}; });
  check_cover(placed, data.size(), file);
  for (Placed& tensor : placed) {
    index_.emplace(tensor.info.name, tensors_.size());
    tensors_.push_back({std::move(tensor.info), data.subspan(tensor.begin, tensor.end - tensor.begin)});
  }
}

const SafetensorsFile::Entry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace witan

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
#include "witan/tensor/host.h"

namespace witan {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian, and written from memory");

constexpr std::array<std::pair<DType, std::string_view>, 6> kNames{{{DType::f32, "F32"},
                                                                    {DType::bf16, "BF16"},
                                                                    {DType::f16, "F16"},
                                                                    {DType::f64, "F64"},
                                                                    {DType::i32, "I32"},
                                                                    {DType::i64, "I64"}}};

uint64_t byte_count(const TensorInfo& info) {
  return static_cast<uint64_t>(info.shape.elements() * size_of(info.dtype));
}

std::vector<TensorInfo> file_order(std::vector<TensorInfo> tensors) {
  std::ranges::stable_sort(tensors, std::greater{}, [](const TensorInfo& info) { return size_of(info.dtype); });
  return tensors;
}

// Describes the tensors as the format does, in file order.
std::vector<StoredTensor> stored(const std::vector<TensorInfo>& order) {
  std::vector<StoredTensor> tensors;
  for (const TensorInfo& info : order)
    tensors.push_back({info.name, std::string(safetensors_name(info.dtype)), info.shape, byte_count(info)});
  return tensors;
}

uint64_t data_bytes(const std::vector<TensorInfo>& tensors) {
  uint64_t sum = 0;
  for (const TensorInfo& info : tensors) sum += byte_count(info);
  return sum;
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  return std::ranges::find(kNames, dtype, &std::pair<DType, std::string_view>::first)->second;
}

DType dtype_from_safetensors(std::string_view name, std::string_view where) {
  const auto* found = std::ranges::find(kNames, name, &std::pair<DType, std::string_view>::second);
  require<CheckpointError>(found != kNames.end(), where, ": dtype \"", clipped(name),
                           "\" is not supported, only F32, BF16, F16, F64, I32 and I64 are");
  return found->first;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<TensorInfo> tensors, Metadata metadata)
    : path_(path), order_(file_order(std::move(tensors))), file_(path) {
  const std::string header = safetensors_header(stored(order_), std::move(metadata), path.string());
  file_bytes_ = header.size() + data_bytes(order_);
  hasher_.update(header.data(), header.size());
  file_.write(header);
}

// Throws unless this tensor has the next tensor's shape and dtype.
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

FileDigest SafetensorsWriter::finish(NameFlush name) {
  require<ShapeError>(next_ == order_.size(), "safetensors: ", path_.string(), " got ", next_, " of its ",
                      order_.size(), " tensors");
  file_.commit(name);
  return {file_bytes_, hasher_.hex()};
}

uint64_t safetensors_bytes(const std::vector<TensorInfo>& tensors, const SafetensorsWriter::Metadata& metadata) {
  return safetensors_header(stored(file_order(tensors)), metadata, "safetensors").size() + data_bytes(tensors);
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : SafetensorsFile(MappedFile(path)) {}

SafetensorsFile::SafetensorsFile(MappedFile mapped) : file_(std::move(mapped)) {
  const std::string file = file_.path().string();
  const auto bytes_of = [](std::string_view dtype, std::string_view where) {
    return size_of(dtype_from_safetensors(dtype, where));
  };
  for (PlacedTensor& placed : parse_safetensors(file_.bytes(), file, bytes_of, metadata_)) {
    index_.emplace(placed.info.name, tensors_.size());
    tensors_.push_back(
        {{std::move(placed.info.name), dtype_from_safetensors(placed.info.dtype, file), placed.info.shape},
         placed.bytes});
  }
}

const SafetensorsFile::Entry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

StoredWriter::StoredWriter(const fs::path& path, const std::vector<StoredTensor>& order,
                           std::map<std::string, std::string> metadata)
    : path_(path), file_(path) {
  const std::string header = safetensors_header(order, std::move(metadata), path.string());
  expected_ = header.size();
  for (const StoredTensor& tensor : order) expected_ += tensor.bytes;
  put(header.data(), header.size());
}

void StoredWriter::put(const void* bytes, size_t count) {
  hasher_.update(bytes, count);
  file_.write(bytes, count);
}

void StoredWriter::write(const std::byte* bytes, size_t count) {
  put(bytes, count);
}

FileDigest StoredWriter::finish() {
  require<ShapeError>(file_.written() == expected_, "safetensors: ", path_.string(), " got ", file_.written(),
                      " of its ", expected_, " bytes");
  file_.commit();
  return {expected_, hasher_.hex()};
}

}  // namespace witan

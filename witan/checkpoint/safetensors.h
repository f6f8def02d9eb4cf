// Files of named tensors in the format of https://huggingface.co/docs/safetensors (docs/formats/safetensors.md).
//
// u64 header bytes (little-endian), a JSON header, then the tensors' bytes, without holes or overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/tensor/shape.h"
#include "witan/tensor/tensor.h"

namespace witan {

// A tensor as the header describes it.
struct StoredTensor {
  std::string name;
  std::string dtype;  // the format's name: "F32", "BF16", "F8_E4M3" …
  Shape shape;
  uint64_t bytes = 0;
};
struct PlacedTensor {
  StoredTensor info;
  std::span<const std::byte> bytes;  // within the file
};

// Bytes per element of this dtype; throws CheckpointError("WHERE: …") for an unsupported one.
using ElementBytes = std::function<int64_t(std::string_view dtype, std::string_view where)>;
// The ElementBytes that knows all dtypes of released models.
int64_t stored_element_bytes(std::string_view dtype, std::string_view where);

// The start of a file with these tensors in this order: the header's length, the JSON, and spaces that align the data.
// {"format": "pt"} is added to the metadata. Throws CheckpointError for a duplicate name, or a header over 100 MB.
std::string safetensors_header(const std::vector<StoredTensor>& order, std::map<std::string, std::string> metadata,
                               std::string_view where);

// Parses the header from untrusted bytes (docs/formats/safetensors.md). Returns the tensors in the order of their
// bytes, which cover the data without holes or overlaps. Throws CheckpointError, which names the file, the tensor, the
// expected and the found value.
std::vector<PlacedTensor> parse_safetensors(std::span<const std::byte> file, std::string_view where,
                                            const ElementBytes& bytes_of, std::map<std::string, std::string>& metadata);

// "F32", "BF16", "F64", "I32", "I64"; these names never change.
std::string_view safetensors_name(DType dtype);
// The inverse; throws CheckpointError("WHERE: …") for any other.
DType dtype_from_safetensors(std::string_view name, std::string_view where);

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// Identifies a file's content.
struct FileDigest {
  uint64_t bytes = 0;
  std::string hash;  // XXH3-128
  bool operator==(const FileDigest&) const = default;
};

// Writes one file: the header first, then each tensor as it is passed, so that only one need be in memory. The file
// appears under its name in finish() (see AtomicFile). The hash is computed from memory, not from the disk. The same
// tensors and metadata give the same bytes.
class SafetensorsWriter {
 public:
  using Metadata = std::map<std::string, std::string>;

  // Throws CheckpointError for a duplicate name, or a header over 100 MB; IoError and DiskFullError here and below.
  // {"format": "pt"} is added to the metadata.
  SafetensorsWriter(const fs::path& path, std::vector<TensorInfo> tensors, Metadata metadata = {});

  // The order of tensors in the file and in calls of write(): wider dtypes first, so that every tensor is aligned to
  // its elements; the given order within a width.
  const std::vector<TensorInfo>& order() const { return order_; }
  uint64_t bytes() const { return file_bytes_; }  // size of the whole file

  // Writes the next tensor of order(), which must be contiguous and have values. Throws ShapeError for any other shape
  // or dtype.
  void write(const Tensor& tensor);
  // Writes a float32 tensor that is stored as two halves (tensor/host.h).
  void write(const Tensor& upper, const Tensor& lower);
  // Throws ShapeError if tensors are missing.
  FileDigest finish(NameFlush name = NameFlush::now);

 private:
  void take_turn(const Tensor& tensor, DType dtype);
  void append(const std::byte* bytes, int64_t count);

  fs::path path_;
  std::vector<TensorInfo> order_;
  size_t next_ = 0;
  uint64_t file_bytes_ = 0;
  Hasher hasher_;
  AtomicFile file_;
};

// The size of such a file. Throws CheckpointError as the writer does.
uint64_t safetensors_bytes(const std::vector<TensorInfo>& tensors, const SafetensorsWriter::Metadata& metadata = {});

// One file, mapped. Everything except the tensors' values is checked when it is opened: throws CheckpointError, which
// names the file, the tensor, the expected and the found value.
class SafetensorsFile {
 public:
  struct Entry {
    TensorInfo info;
    std::span<const std::byte> bytes;  // within the mapped file; not aligned if another program wrote it
  };

  explicit SafetensorsFile(const fs::path& path);  // IoError when it cannot be read
  explicit SafetensorsFile(MappedFile mapped);

  const std::vector<Entry>& tensors() const { return tensors_; }  // in the order of their bytes
  const Entry* find(const std::string& name) const;               // nullptr if absent
  const SafetensorsWriter::Metadata& metadata() const { return metadata_; }
  std::span<const std::byte> bytes() const { return file_.bytes(); }  // the whole file

 private:
  MappedFile file_;
  std::vector<Entry> tensors_;
  std::unordered_map<std::string, size_t> index_;
  SafetensorsWriter::Metadata metadata_;
};

class StoredWriter {
 public:
  // Writes the header. Throws CheckpointError as safetensors_header() does; IoError and DiskFullError here and below.
  StoredWriter(const fs::path& path, const std::vector<StoredTensor>& order,
               std::map<std::string, std::string> metadata = {});

  // Writes the next bytes of the tensors, which follow each other in the header's order.
  void write(const std::byte* bytes, size_t count);
  // Makes the file appear under its name. Throws ShapeError if there were more or fewer bytes than the header says.
  FileDigest finish();

 private:
  void put(const void* bytes, size_t count);

  const fs::path path_;
  uint64_t expected_ = 0;
  Hasher hasher_;
  AtomicFile file_;
};

}  // namespace witan

#include "witan/checkpoint/stored_writer.h"

#include <utility>

#include "witan/base/error.h"

namespace witan {

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

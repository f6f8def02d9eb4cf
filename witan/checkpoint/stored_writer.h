// Writes a safetensors file whose tensors never are in memory as a whole, in any dtype of the format.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/checkpoint/safetensors_header.h"

namespace witan {

class StoredWriter {
 public:
  // Writes the header. Throws CheckpointError as safetensors_header() does; IoError and DiskFullError here and below.
  StoredWriter(const fs::path& path, const std::vector<StoredTensor>& order,
               std::map<std::string, std::string> metadata = {});

  // The next bytes of the tensors, which follow each other in the header's order.
  void write(const std::byte* bytes, size_t count);
  // Makes the file appear under its name. Throws ShapeError when there were more or fewer bytes than the header says.
  FileDigest finish();

 private:
  void put(const void* bytes, size_t count);

  const fs::path path_;
  uint64_t expected_ = 0;
  Hasher hasher_;
  AtomicFile file_;
};

}  // namespace witan

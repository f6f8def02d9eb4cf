// Members of a tar archive, one after the other: POSIX ustar and pax, and GNU's long names
// (https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html; GNU tar's manual, "Basic Tar Format").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "witan/data/text/decompress.h"

namespace witan::tar {

struct Member {
  std::string name;
  uint64_t bytes = 0;
};

// Not thread-safe; keeps a reference to `bytes`. Throws tables::Damaged, and what `bytes` throws.
class TarReader {
 public:
  explicit TarReader(ByteReader& bytes) : bytes_(bytes) {}

  // The next regular file; what else there is, links and folders, is passed over. False at the end mark, a block of
  // zeros, and from then on: what stands after it is no part of the archive.
  bool next(Member& member);
  // The current file's contents, as far as `most` bytes; once for each.
  void read(std::string& contents, uint64_t most);

 private:
  struct Header;
  bool read_header(Header& header);
  bool fill(char* out, uint64_t bytes);
  void skip(uint64_t bytes);
  std::string read_extension(uint64_t bytes);

  ByteReader& bytes_;
  uint64_t left_ = 0;  // of the current member, with its padding
  uint64_t in_member_ = 0;
  bool at_end_ = false;
};

}  // namespace witan::tar

#include "witan/data/tar/tar_reader.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "witan/data/tables/damage.h"

namespace witan::tar {

using tables::intact;

namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kMostExtension = 1 << 20;  // of a long name, or of pax records

std::string_view until_nul(std::string_view field) {
  return field.substr(0, field.find('\0'));
}

// Octal digits between spaces; or, where its first bit is set, GNU's number of 95 bits, of which 63 are enough.
uint64_t number_of(std::string_view field) {
  uint64_t value = 0;
  if (static_cast<unsigned char>(field[0]) & 0x80) {
    for (size_t i = 1; i < field.size(); ++i) {
      intact(value >> 55 == 0, "a number in its header has more than 63 bits");
      value = value << 8 | static_cast<unsigned char>(field[i]);
    }
    return value;
  }
  field = until_nul(field);
  field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
  field = field.substr(0, field.find(' '));
  const auto end = std::from_chars(field.data(), field.data() + field.size(), value, 8);
  intact(field.empty() || (end.ec == std::errc() && end.ptr == field.data() + field.size()),
         "a number in its header is not octal");
  return value;
}

// Values of pax records for the next member: lines "LENGTH KEY=VALUE\n", whose length includes itself.
struct Said {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
};

void read_pax(std::string_view records, Said& said) {
  while (!records.empty()) {
    uint64_t length = 0;
    const auto end = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<size_t>(end.ptr - records.data());
    intact(end.ec == std::errc() && length > digits + 1 && length <= records.size() && records[digits] == ' ' &&
               records[length - 1] == '\n',
           "a pax record has the length ", length);
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    const size_t equals = record.find('=');
    intact(equals != record.npos, "a pax record has no value");
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") said.path = value;
    if (key == "size") {
      uint64_t size = 0;
      const auto stop = std::from_chars(value.data(), value.data() + value.size(), size);
      intact(stop.ec == std::errc() && stop.ptr == value.data() + value.size(), "a pax record has no size");
      said.size = size;
    }
    records.remove_prefix(length);
  }
}

}  // namespace

struct TarReader::Header {
  std::string name;
  uint64_t bytes = 0;
  char type = 0;
};

// Whole, or false where nothing is left.
bool TarReader::fill(char* out, uint64_t bytes) {
  uint64_t have = 0;
  while (have < bytes) {
    const size_t n = bytes_.read(out + have, bytes - have);
    if (n == 0) break;
    have += n;
  }
  intact(have == bytes || have == 0, "the archive ends within a block");
  return have == bytes;
}

void TarReader::skip(uint64_t bytes) {
  std::array<char, 16 << 10> unread;
  while (bytes > 0) {
    const uint64_t some = std::min<uint64_t>(bytes, unread.size());
    intact(fill(unread.data(), some), "the archive ends within a file");
    bytes -= some;
  }
}

bool TarReader::read_header(Header& header) {
  skip(left_);
  left_ = in_member_ = 0;
  std::array<char, kBlock> block;
  intact(fill(block.data(), kBlock), "the archive ends without its end mark");
  const std::string_view text(block.data(), kBlock);
  if (text.find_first_not_of('\0') == text.npos) return false;
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(text[i]);
  intact(sum == number_of(text.substr(148, 8)),
         "a header's checksum is not that of its bytes: this is no tar archive, "
         "or it is damaged");
  header.name = until_nul(text.substr(0, 100));
  // POSIX archives have the rest of a long name here, GNU's have times.
  if (text.substr(257, 6) == std::string_view("ustar\0", 6) && text[345] != '\0')
    header.name = std::string(until_nul(text.substr(345, 155))) + "/" + header.name;
  header.bytes = number_of(text.substr(124, 12));
  header.type = text[156];
  return true;
}

// Reads the contents of a header that extends the next one.
std::string TarReader::read_extension(uint64_t bytes) {
  intact(bytes <= kMostExtension, "a name or pax record has ", bytes, " bytes");
  std::string contents(bytes, '\0');
  intact(fill(contents.data(), bytes), "the archive ends within a name");
  skip((kBlock - bytes % kBlock) % kBlock);
  return contents;
}

bool TarReader::next(Member& member) {
  Said said;
  for (Header header; !at_end_ && read_header(header);) {
    if (header.type == 'L') {
      said.path = until_nul(read_extension(header.bytes));
      continue;
    }
    if (header.type == 'x') {
      read_pax(read_extension(header.bytes), said);
      continue;
    }
    const bool is_file = header.type == '0' || header.type == '\0' || header.type == '7';
    const bool is_link = header.type == '1' || header.type == '2';  // whose size is that of what it links to
    if (said.size) header.bytes = *said.size;
    intact(header.bytes < uint64_t{1} << 62, "a file of ", header.bytes, " bytes");
    in_member_ = is_link ? 0 : header.bytes;
    left_ = (in_member_ + kBlock - 1) / kBlock * kBlock;
    if (is_file) {
      member = {said.path ? *said.path : header.name, header.bytes};
      return true;
    }
    if (header.type != 'g' && header.type != 'K') said = {};
  }
  at_end_ = true;
  return false;
}

void TarReader::read(std::string& contents, uint64_t most) {
  contents.clear();
  // Reads in pieces, since the size in a header is only a claim.
  constexpr uint64_t kPiece = 1 << 20;
  for (uint64_t wanted = std::min(in_member_, most); wanted > 0;) {
    const uint64_t some = std::min(wanted, kPiece);
    const size_t have = contents.size();
    contents.resize(have + some);
    intact(fill(contents.data() + have, some), "the archive ends within a file");
    wanted -= some;
    left_ -= some;
  }
  in_member_ = 0;
}

}  // namespace witan::tar

#include "witan/report/tfevents.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>

#include "witan/base/error.h"

namespace witan::tfevents {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

// A checksum of data that holds checksums would be weak, hence the mask.
uint32_t masked(uint32_t crc) {
  return std::rotr(crc, 15) + 0xA282EAD8U;
}

template <class T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// The wire format of protocol buffers (protobuf.dev/programming-guides/encoding).
class Message {
 public:
  Message& integer(uint32_t field, uint64_t value) {
    if (value == 0) return *this;  // the default, as proto3 leaves it out
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& number(uint32_t field, double value) {
    if (value == 0) return *this;
    key(field, 1);
    bytes_ += little_endian(value);
    return *this;
  }
  Message& text(uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  // One of several alternatives: present even where it is 0.
  Message& chosen_float(uint32_t field, float value) {
    key(field, 5);
    bytes_ += little_endian(value);
    return *this;
  }
  Message& packed(uint32_t field, const std::vector<double>& values) {
    if (values.empty()) return *this;
    key(field, 2);
    varint(values.size() * sizeof(double));
    for (const double value : values) bytes_ += little_endian(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(uint32_t field, uint32_t wire_type) { varint(uint64_t{field} << 3 | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message event(double wall_time, int64_t step) {
  Message message;
  message.number(1, wall_time).integer(2, static_cast<uint64_t>(step));
  return message;
}

std::string encode(const Histogram& h) {
  Message message;
  message.number(1, h.min).number(2, h.max).number(3, h.num).number(4, h.sum).number(5, h.sum_squares);
  return message.packed(6, h.limits).packed(7, h.counts).bytes();
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// "events.out.tfevents.1730000000.HOST.PID.0": readers take files in the order of their names.
fs::path new_file(const fs::path& folder, double time) {
  std::error_code error;
  fs::create_directories(folder, error);
  require<IoError>(!error, "cannot create ", folder.string(), " for TensorBoard: ", error.message());
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') std::strcpy(host.data(), "localhost");
  for (int64_t n = 0;; ++n) {
    fs::path path =
        folder / cat("events.out.tfevents.", std::llround(std::floor(time)), ".", host.data(), ".", ::getpid(), ".", n);
    if (!fs::exists(path)) return path;
  }
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t crc = ~0U;
  for (const char c : data) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

std::string frame(std::string_view data) {
  const std::string length = little_endian(uint64_t{data.size()});
  std::string record = length + little_endian(masked(crc32c(length)));
  record += data;
  return record + little_endian(masked(crc32c(data)));
}

Histogram histogram_of_counts(std::string tag, const std::vector<int64_t>& counts) {
  Histogram histogram;
  histogram.tag = std::move(tag);
  // Readers drop empty buckets at both ends, and stretch what is left to min and max.
  const auto first = std::ranges::find_if(counts, [](int64_t count) { return count > 0; });
  const auto last = std::find_if(counts.rbegin(), counts.rend(), [](int64_t count) { return count > 0; });
  histogram.min = static_cast<double>(first - counts.begin()) - 0.5;
  histogram.max = static_cast<double>(counts.rend() - last) - 0.5;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto number = static_cast<double>(i), count = static_cast<double>(counts[i]);
    histogram.num += count;
    histogram.sum += count * number;
    histogram.sum_squares += count * number * number;
    histogram.limits.push_back(number + 0.5);
    histogram.counts.push_back(count);
  }
  return histogram;
}

std::string version_event(double wall_time) {
  return event(wall_time, 0).text(3, "brain.Event:2").bytes();
}

std::string start_event(double wall_time, int64_t step) {
  constexpr uint64_t kStart = 1;  // SessionLog.START
  return event(wall_time, step).text(7, Message().integer(1, kStart).bytes()).bytes();
}

std::string summary_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars,
                          const std::vector<Histogram>& histograms) {
  Message summary;
  for (const Scalar& scalar : scalars)
    summary.text(1, Message().text(1, scalar.tag).chosen_float(2, static_cast<float>(scalar.value)).bytes());
  for (const Histogram& histogram : histograms)
    summary.text(1, Message().text(1, histogram.tag).text(5, encode(histogram)).bytes());
  return event(wall_time, step).text(5, summary.bytes()).bytes();
}

Writer::Writer(const fs::path& folder, int64_t first_step) : file_(new_file(folder, now())) {
  const double time = now();
  file_.append(frame(version_event(time)) + frame(start_event(time, first_step)));
}

void Writer::add(int64_t step, const std::vector<Scalar>& scalars, const std::vector<Histogram>& histograms) {
  file_.append(frame(summary_event(now(), step, scalars, histograms)));
}

}  // namespace witan::tfevents

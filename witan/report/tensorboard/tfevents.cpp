#include "witan/report/tensorboard/tfevents.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <system_error>

#include "witan/base/error.h"
#include "witan/report/tensorboard/protobuf.h"

namespace witan::tfevents {
namespace {

using protobuf::little_endian, protobuf::Message;

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

Message event(double wall_time, int64_t step) {
  Message message;
  message.number(1, wall_time).integer(2, static_cast<uint64_t>(step));
  return message;
}

Message encode(const Histogram& h) {
  Message message;
  message.number(1, h.min).number(2, h.max).number(3, h.num).number(4, h.sum).number(5, h.sum_squares);
  return message.packed(6, h.limits).packed(7, h.counts);
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

fs::path new_file(const fs::path& folder, int64_t seconds) {
  std::error_code error;
  fs::create_directories(folder, error);
  require<DiskFullError>(error != std::errc::no_space_on_device, "cannot create ", folder.string(),
                         " for TensorBoard: the disk is full; free some space and run the same command again");
  require<IoError>(!error, "cannot create ", folder.string(), " for TensorBoard: ", error.message());
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') std::strcpy(host.data(), "localhost");
  for (int64_t n = 0;; ++n) {
    fs::path path = folder / cat("events.out.tfevents.", seconds, ".", host.data(), ".", ::getpid(), ".", n);
    if (!fs::exists(path)) return path;
  }
}

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
  // Readers drop empty buckets at both ends, and stretch the others to min and max.
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
  return event(wall_time, step).message(7, Message().integer(1, kStart)).bytes();
}

std::string summary_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars,
                          const std::vector<Histogram>& histograms) {
  Message summary;
  for (const Scalar& scalar : scalars)
    summary.message(1, Message().text(1, scalar.tag).chosen_float(2, static_cast<float>(scalar.value)));
  for (const Histogram& histogram : histograms)
    summary.message(1, Message().text(1, histogram.tag).message(5, encode(histogram)));
  return event(wall_time, step).message(5, summary).bytes();
}

std::string text_event(double wall_time, int64_t step, std::string_view tag, std::string_view markdown) {
  constexpr uint64_t kString = 7;  // DataType.DT_STRING
  // A tensor without dimensions: one text.
  const Message tensor = Message().integer(1, kString).message(2, {}).chosen_text(8, markdown);
  const Message metadata = Message().message(1, Message().text(1, "text"));
  const Message value = Message().text(1, tag).message(8, tensor).message(9, metadata);
  return event(wall_time, step).message(5, Message().message(1, value)).bytes();
}

Writer::Writer(const fs::path& folder, int64_t first_step) : file_(new_file(folder, std::llround(std::floor(now())))) {
  const double time = now();
  file_.append(frame(version_event(time)) + frame(start_event(time, first_step)));
}

void Writer::add(int64_t step, const std::vector<Scalar>& scalars, const std::vector<Histogram>& histograms) {
  file_.append(frame(summary_event(now(), step, scalars, histograms)));
}

void Writer::add_text(int64_t step, std::string_view tag, std::string_view markdown) {
  file_.append(frame(text_event(now(), step, tag, markdown)));
}

namespace {

using protobuf::Message;

// google.protobuf.Value.
Message encode(const std::variant<bool, double, std::string>& value) {
  Message message;
  if (const auto* flag = std::get_if<bool>(&value)) return message.chosen_integer(4, *flag ? 1 : 0);
  if (const auto* number = std::get_if<double>(&value)) return message.chosen_number(2, *number);
  return message.chosen_text(3, std::get<std::string>(value));
}

uint64_t data_type(const Hyperparameter& parameter) {
  constexpr uint64_t kText = 1, kFlag = 2, kNumber = 3;  // DataType
  if (std::holds_alternative<bool>(parameter.value)) return kFlag;
  return std::holds_alternative<double>(parameter.value) ? kNumber : kText;
}

// HParamInfo. Values that are listed can be ticked in the tab; numbers are filtered by bounds.
Message column(const Hyperparameter& parameter) {
  Message listed;  // google.protobuf.ListValue
  if (std::holds_alternative<bool>(parameter.value))
    for (const bool value : {false, true}) listed.message(1, encode(value));
  for (const std::string& value : parameter.choices) listed.message(1, encode(value));
  Message info;
  info.text(1, parameter.name).integer(4, data_type(parameter));
  if (!listed.bytes().empty()) info.message(5, listed);
  return info.integer(7, parameter.differs ? 1 : 0);
}

// A summary of metadata only; its tensor has one dimension of size 0. HParamsPluginData has one field.
std::string event_of(double wall_time, std::string_view tag, uint32_t field, const Message& data) {
  constexpr uint64_t kFloat = 1;  // DataType.DT_FLOAT
  const Message shape = Message().message(2, {});
  const Message plugin = Message().text(1, "hparams").message(2, Message().message(field, data));
  const Message value = Message()
                            .text(1, tag)
                            .message(8, Message().integer(1, kFloat).message(2, shape))
                            .message(9, Message().message(1, plugin));
  return Message().number(1, wall_time).message(5, Message().message(1, value)).bytes();
}

// Before the names of all other files, whose seconds are those since 1970: readers that follow a folder take its files
// one after the other.
constexpr int64_t kFirst = 0;
constexpr std::string_view kName = "events.out.tfevents.0.";

// An entry of the map of session_start_event().
Message entry(const Hyperparameter& parameter) {
  return Message().chosen_text(1, parameter.name).message(2, encode(parameter.value));
}

// Whether a session file belongs to the run of this name. A file that cannot be read, or was replaced meanwhile, does
// not.
bool is_of_run(const fs::path& file, const std::string& run) {
  try {
    return read_file(file).find(Message().message(1, entry({"run", run})).bytes()) != std::string::npos;
  } catch (const IoError&) {
    return false;
  }
}

}  // namespace

std::string experiment_event(double wall_time, const std::vector<Hyperparameter>& hyperparameters,
                             const std::vector<std::string>& metrics) {
  Message experiment;
  experiment.number(3, wall_time);
  for (const Hyperparameter& parameter : hyperparameters) experiment.message(4, column(parameter));
  for (const std::string& tag : metrics) experiment.message(5, Message().message(1, Message().text(2, tag)));
  return event_of(wall_time, "_hparams_/experiment", 2, experiment);
}

std::string session_start_event(double wall_time, const std::vector<Hyperparameter>& hyperparameters) {
  std::map<std::string_view, Message> sorted;  // as protobuf's deterministic encoders write a map
  for (const Hyperparameter& parameter : hyperparameters) sorted[parameter.name] = entry(parameter);
  Message start;
  for (const auto& [name, encoded] : sorted) start.message(1, encoded);
  return event_of(wall_time, "_hparams_/session_start_info", 3, start.number(5, wall_time));
}

std::string session_end_event(double wall_time, SessionStatus status) {
  return event_of(wall_time, "_hparams_/session_end_info", 4,
                  Message().integer(1, static_cast<uint64_t>(status)).number(2, wall_time));
}

SessionFile::SessionFile(const fs::path& folder, const std::vector<Hyperparameter>& hyperparameters,
                         const std::vector<std::string>& metrics, const std::string& run)
    : file_(new_file(folder, kFirst)) {
  const double time = now();
  file_.append(frame(version_event(time)) + frame(experiment_event(time, hyperparameters, metrics)) +
               frame(session_start_event(time, hyperparameters)));
  std::vector<fs::path> older;
  for (const auto& file : fs::directory_iterator(folder))
    if (file.path() != path() && file.path().filename().string().starts_with(kName) &&
        (run.empty() || is_of_run(file.path(), run)))
      older.push_back(file.path());
  for (const fs::path& file : older) {
    std::error_code error;
    fs::remove(file, error);
    require<IoError>(!error, "cannot remove ", file.string(), ", an earlier start's: ", error.message());
  }
}

void SessionFile::end(SessionStatus status) {
  file_.append(frame(session_end_event(now(), status)));
}

}  // namespace witan::tfevents

#include "witan/report/tensorboard/tfevents_hparams.h"

#include <map>
#include <string_view>

#include "witan/base/error.h"
#include "witan/report/tensorboard/protobuf.h"
#include "witan/report/tensorboard/tfevents.h"

namespace witan::tfevents {
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

// Such summaries consist of metadata; their tensor has one dimension, of no elements. HParamsPluginData has one field.
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

// Whether a session file is one of the run that has this name. One that cannot be read, or was replaced meanwhile, is
// another's.
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

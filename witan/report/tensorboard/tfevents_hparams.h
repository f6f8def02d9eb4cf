// What TensorBoard's HPARAMS tab shows of a run: its hyperparameters, the metrics to compare runs by, and how it ended
// (docs/formats/tensorboard.md). Only the parts of tensorboard/plugins/hparams/{plugin_data,api}.proto that this needs
// are encoded.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "witan/base/files/append_file.h"

namespace witan::tfevents {

struct Hyperparameter {
  std::string name;
  std::variant<bool, double, std::string> value;
  std::vector<std::string> choices = {};  // texts: what else it may be; empty: anything
  bool differs = false;                   // from its default: such columns come first
};

enum class SessionStatus : uint8_t { success = 1, failure = 2 };  // Status of api.proto

// Encoded events: the columns of the tab's table, which TensorBoard takes from one of the runs that it shows; a run's
// values of them; and its end. `wall_time`: seconds since 1970.
std::string experiment_event(double wall_time, const std::vector<Hyperparameter>& hyperparameters,
                             const std::vector<std::string>& metrics);
std::string session_start_event(double wall_time, const std::vector<Hyperparameter>& hyperparameters);
std::string session_end_event(double wall_time, SessionStatus status);

// The file of FOLDER that has these events of a run. Of several, readers would show the first: a run that was resumed
// with another configuration, or finished after it had failed, replaces the file. Not thread-safe. Throws IoError,
// DiskFullError.
class SessionFile {
 public:
  // `run`: of a folder that runs may share, the run's name, which its hyperparameter `run` has: other runs' files stay.
  // Empty: all in the folder is of this run, whatever it was called.
  SessionFile(const fs::path& folder, const std::vector<Hyperparameter>& hyperparameters,
              const std::vector<std::string>& metrics, const std::string& run = "");

  void end(SessionStatus status);

  const fs::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace witan::tfevents

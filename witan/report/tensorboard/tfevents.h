// TensorBoard's event files (docs/formats/tensorboard.md): length-delimited records of protocol buffers with checksums.
// Only the parts of tensorboard/compat/proto/{event,summary}.proto that training needs are encoded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "witan/base/files/growing_file.h"

namespace witan::tfevents {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
uint32_t crc32c(std::string_view data);

// A record: length (u64), masked checksum of it (u32), data, masked checksum of it; little-endian.
std::string frame(std::string_view data);

struct Scalar {
  std::string tag;
  double value = 0;  // stored as float32
};

// Bucket i counts values between limits[i-1], or `min`, and limits[i].
struct Histogram {
  std::string tag;
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;  // of equal length
};
// A histogram with counts[i] values equal to i: a bucket for each number, from i - 1/2 to i + 1/2.
Histogram histogram_of_counts(std::string tag, const std::vector<int64_t>& counts);

// Encoded events: the first one of a file; "this run resumes at `step`", which makes readers drop what older files of
// the folder contain for it and later steps; and values. `wall_time`: seconds since 1970.
std::string version_event(double wall_time);
std::string start_event(double wall_time, int64_t step);
std::string summary_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars,
                          const std::vector<Histogram>& histograms);
// Markdown of the TEXT tab.
std::string text_event(double wall_time, int64_t step, std::string_view tag, std::string_view markdown);

double now();  // seconds since 1970
// The path of a file that is not there yet in FOLDER, which is created if it is missing. Readers take files in the
// order of their names, which begin with `seconds`. Throws IoError, DiskFullError.
fs::path new_file(const fs::path& folder, int64_t seconds);

// A new file in FOLDER, which is created if it is missing; a resumed run adds a file. Not thread-safe. Throws IoError,
// DiskFullError.
class Writer {
 public:
  // `first_step`: the first step that this process will write.
  Writer(const fs::path& folder, int64_t first_step);

  void add(int64_t step, const std::vector<Scalar>& scalars, const std::vector<Histogram>& histograms = {});
  void add_text(int64_t step, std::string_view tag, std::string_view markdown);

  const fs::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

// Events of TensorBoard's HPARAMS tab: a run's hyperparameters, the metrics to compare runs by, and how it ended
// (docs/formats/tensorboard.md). Only the needed parts of tensorboard/plugins/hparams/{plugin_data,api}.proto are
// encoded.
struct Hyperparameter {
  std::string name;
  std::variant<bool, double, std::string> value;
  std::vector<std::string> choices = {};  // for texts the allowed values; empty: any
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

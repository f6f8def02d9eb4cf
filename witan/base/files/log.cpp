#include "witan/base/files/log.h"

#include <fmt/chrono.h>

#include <chrono>

#include "witan/base/error.h"
#include "witan/base/files/growing_file.h"
#include "witan/base/threads/mutex.h"

namespace witan {

struct Log::Sink {
  explicit Sink(const std::string& path) : file(path) {}

  Mutex mutex;
  AppendFile file WITAN_GUARDED_BY(mutex);
};

Log::Log() = default;
Log::Log(const std::string& path) : sink_(std::make_unique<Sink>(path)) {}
Log::~Log() = default;
Log::Log(Log&&) noexcept = default;
Log& Log::operator=(Log&&) noexcept = default;

void Log::write(std::string_view level, std::string_view line) const {
  if (!sink_) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now - seconds).count();
  const std::string record =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z {} {}\n", fmt::gmtime(seconds.count()), milliseconds, level, line);
  const MutexLock lock(sink_->mutex);
  try {
    sink_->file.append(record);
  } catch (const IoError&) {
    // A failing log does not end the run. If the disk is full, files that must be written report it.
  } catch (const DiskFullError&) {
  }
}

void Log::info(std::string_view line) const {
  write("info", line);
}
void Log::warn(std::string_view line) const {
  write("warning", line);
}
void Log::error(std::string_view line) const {
  write("error", line);
}

}  // namespace witan

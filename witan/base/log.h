// A run's log file: one line per event with a UTC time stamp. What a person watches goes to the terminal instead.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}

namespace witan {

// Thread-safe. A default-made Log drops everything.
class Log {
 public:
  Log() = default;
  // Appends to `path`. Throws IoError when it cannot be opened.
  explicit Log(const std::string& path);

  void info(std::string_view line) const;
  void warn(std::string_view line) const;
  void error(std::string_view line) const;

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace witan

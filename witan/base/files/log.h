// A run's log file: one line per event with a UTC time stamp. What a person watches goes to the terminal instead.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace witan {

// Thread-safe. A default-made Log drops everything. A line is in the file, whole, when the call returns; one that
// cannot be written is dropped.
class Log {
 public:
  Log();
  // Appends to `path`. Throws IoError when it cannot be opened.
  explicit Log(const std::string& path);
  ~Log();
  Log(Log&&) noexcept;
  Log& operator=(Log&&) noexcept;

  void info(std::string_view line) const;
  void warn(std::string_view line) const;
  void error(std::string_view line) const;

 private:
  struct Sink;
  void write(std::string_view level, std::string_view line) const;

  std::unique_ptr<Sink> sink_;
};

}  // namespace witan

// Writes a rank's timeline in the Chrome trace event format (JSON objects; "Trace Event Format", Google, 2016), which
// ui.perfetto.dev and chrome://tracing show.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

class ChromeTrace {
 public:
  using Args = std::vector<std::pair<std::string_view, std::string>>;  // values are JSON: json_text(), numbers

  // `process` is the rank; times are passed in nanoseconds, and written as microseconds since `origin_ns`.
  ChromeTrace(int process, std::string_view name, int64_t origin_ns);

  void name_track(int track, std::string_view name);
  void slice(int track, std::string_view name, int64_t begin_ns, int64_t end_ns, const Args& args = {});
  void counter(std::string_view name, int64_t at_ns, const Args& series);

  size_t bytes() const { return events_.size(); }
  std::string json() const;  // one document, with all events so far

 private:
  void add(const std::string& event);
  std::string moment(int64_t ns) const;

  int process_;
  int64_t origin_ns_;
  std::string events_;
};
std::string json_text(std::string_view text);  // in quotes

// Merges the documents of several ranks, each as written by json(), into one file, atomically. Throws IoError,
// CorruptionError.
void merge_chrome_traces(const std::vector<fs::path>& from, const fs::path& to);

}  // namespace witan

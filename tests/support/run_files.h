// Reads files of a run: TensorBoard events and step traces.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::test {

// The bytes of all TensorBoard event files in `folder`.
inline std::string event_bytes(const fs::path& folder) {
  std::string bytes;
  for (const auto& file : fs::directory_iterator(folder)) bytes += read_file(file.path());
  return bytes;
}

inline size_t count(const std::string& bytes, const std::string& text) {
  size_t found = 0;
  for (size_t at = bytes.find(text); at != std::string::npos; at = bytes.find(text, at + 1)) ++found;
  return found;
}

}  // namespace witan::test

namespace witan::testing {

// The events of a step trace (train/trace/step_tracer.h).
inline nlohmann::json events_of(const fs::path& trace) {
  return nlohmann::json::parse(read_file(trace)).at("traceEvents");
}

// The slices on one of a rank's tracks.
inline std::vector<nlohmann::json> slices(const nlohmann::json& events, int rank, const std::string& track) {
  int number = -1;
  for (const auto& event : events)
    if (event["name"] == "thread_name" && event["pid"] == rank && event["args"]["name"] == track) number = event["tid"];
  std::vector<nlohmann::json> found;
  for (const auto& event : events)
    if (event["ph"] == "X" && event["pid"] == rank && event["tid"] == number) found.push_back(event);
  return found;
}

}  // namespace witan::testing

// What stands in a trace of steps (train/trace/step_tracer.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::testing {

inline nlohmann::json events_of(const fs::path& trace) {
  return nlohmann::json::parse(read_file(trace)).at("traceEvents");
}

// Of a rank, on a track.
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

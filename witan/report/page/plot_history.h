// Versions of the data of growing charts (plot_data() in charts.h). A page that has one version is sent only what it
// lacks of the newest, which is little, since curves mostly grow at their ends.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace witan {

class PlotHistory {
 public:
  static constexpr int64_t kRemembered = 256;  // versions before the newest

  // The next version; the first one is 1.
  void push(nlohmann::ordered_json data);

  int64_t version() const { return version_; }  // 0: there is none yet
  const nlohmann::ordered_json& data() const { return data_; }

  // Whether `known`, which may be any number, is a version that since() accepts.
  bool remembers(int64_t known) const;
  // The newest data for a page that has version `known`: as data(), but each list of numbers or points, wherever it
  // stands, is {"keep": N, "then": [...]}: the first N elements of the page's list of that place, and then these. With
  // N = 0 the page may have none there.
  nlohmann::ordered_json since(int64_t known) const;

 private:
  int64_t version_ = 0;
  nlohmann::ordered_json data_ = nlohmann::ordered_json::object();
  // For each list, by its place in data_, the number of first elements that each of the last versions shares with the
  // version before it, the newest last. The first version of a new list shares none.
  std::map<std::string, std::deque<size_t>> shared_;
};

}  // namespace witan

// The data of charts that grow (plot_data() in charts.h), in versions: what a page that has one of them lacks of the
// newest. Since curves mostly go on at their ends, that is little.
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

  // Whether `known`, which may be any number, is a version that since() can be told.
  bool remembers(int64_t known) const;
  // The newest data for a page that has version `known`: as data(), but each list of numbers or points, wherever it
  // stands, is {"keep": N, "then": [...]}: the first N elements of the page's list of that place, and then these. With
  // N = 0 the page may have none there.
  nlohmann::ordered_json since(int64_t known) const;

 private:
  int64_t version_ = 0;
  nlohmann::ordered_json data_ = nlohmann::ordered_json::object();
  // Of each list, by its place in data_: how many first elements each of the last versions shares with the one before
  // it, the newest last. The first of a list that is new shares none.
  std::map<std::string, std::deque<size_t>> shared_;
};

}  // namespace witan

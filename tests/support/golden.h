// Values that other programs computed (tests/golden): named lists, each on a line of its own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace witan::testing {

class GoldenValues {
 public:
  // A file below tests/golden whose lines are a name and its values, apart by tabs or spaces.
  explicit GoldenValues(const std::string& path) {
    std::ifstream file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden" / path);
    EXPECT_TRUE(file) << path;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name, word;
      words >> name;
      while (words >> word) all_[name].push_back(std::stod(word));
    }
  }
  const std::vector<double>& of(const std::string& name) const { return all_.at(name); }
  const std::map<std::string, std::vector<double>>& all() const { return all_; }

 private:
  std::map<std::string, std::vector<double>> all_;
};

}  // namespace witan::testing

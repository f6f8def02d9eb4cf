#include "witan/cli/args/config_origin.h"

#include <fstream>

#include "witan/base/text.h"

namespace witan::cli {
namespace {

constexpr const char* kHead = "# from ";

}  // namespace

std::string origin_line(const std::string& preset, const std::string& file) {
  if (preset.empty() && file.empty()) return "";
  const std::string from = preset.empty() ? "" : "preset " + preset;
  return origin_line(cat(from, from.empty() || file.empty() ? "" : ", ", clipped(file, 200)));
}

std::string origin_line(const std::string& source) {
  return kHead + source + '\n';
}

std::string origin_line_of(const fs::path& config_toml) {
  std::error_code none;
  if (!fs::is_regular_file(config_toml, none)) return "";  // a FIFO would wait for a writer
  std::ifstream file(config_toml);
  std::string line;
  return std::getline(file, line) && line.starts_with(kHead) ? line + '\n' : "";
}

std::string read_origin(const fs::path& config_toml) {
  std::string line = origin_line_of(config_toml);
  if (line.empty()) return "";
  line.pop_back();
  return clipped(line.substr(std::string_view(kHead).size()), 300);
}

}  // namespace witan::cli

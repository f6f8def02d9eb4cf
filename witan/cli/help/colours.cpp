#include "witan/cli/help/colours.h"

#include <sstream>

namespace witan::cli {
namespace {

constexpr const char *kBold = "\x1b[1m", *kFlag = "\x1b[36m", *kPlain = "\x1b[0m";

std::string coloured_line(const std::string& line) {
  if (line.empty()) return line;
  constexpr std::string_view kUsage = "usage:";
  if (line.starts_with(kUsage)) return kBold + std::string(kUsage) + kPlain + line.substr(kUsage.size());
  if (line.front() != ' ' && line.back() == ':' && line.find(' ') == std::string::npos) return kBold + line + kPlain;
  if (!line.starts_with("  -")) return line;
  const size_t end = std::min(line.find("   "), line.size());  // of the names and their type
  const size_t names = std::min(line.find_first_of(" ", 2), end);
  return "  " + (kFlag + line.substr(2, names - 2) + kPlain) + line.substr(names);
}

}  // namespace

std::string coloured_help(const std::string& help, bool colour) {
  if (!colour) return help;
  std::istringstream lines(help);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += coloured_line(line) + '\n';
  return out;
}

}  // namespace witan::cli

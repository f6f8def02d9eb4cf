#include "witan/cli/machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"

namespace witan::cli {
namespace {

// Files of /proc and /sys report no size, so a stream reads them. Empty if there is no such file.
std::string read_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n"), end = text.find_last_not_of(" \t\n");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

// The value of the first line "key : value".
std::string value_of(std::string_view text, std::string_view key) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && trimmed(line.substr(0, colon)) == key)
      return std::string(trimmed(line.substr(colon + 1)));
    begin = end + 1;
  }
  return {};
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  text = trimmed(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

struct Instruction {
  const char* flag;  // in /proc/cpuinfo
  const char* name;
};
constexpr Instruction kInstructions[] = {
    {"avx2", "AVX2"},
    {"fma", "FMA"},
    {"avx512f", "AVX-512"},
    {"avx512_bf16", "AVX-512 BF16"},
    {"avx512_vnni", "AVX-512 VNNI"},
    {"amx_bf16", "AMX BF16"},
    {"asimd", "NEON"},
    {"sve", "SVE"},
};

// The limit in bytes that a control group's folder sets, in the file of version 1 or 2. A number near 2^63 means none.
std::optional<uint64_t> group_limit(const fs::path& folder) {
  constexpr uint64_t kNone = uint64_t{1} << 60;
  for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
    const auto limit = parse_number(read_text(folder / name));
    if (limit && *limit < kNone) return limit;
  }
  return std::nullopt;
}

std::optional<uint64_t> least_group_limit(const fs::path& root) {
  std::optional<uint64_t> least;
  const auto walk_up = [&](const fs::path& mount, fs::path inside) {
    for (;; inside = inside.parent_path()) {
      const auto limit = group_limit(mount / inside);
      if (limit) least = std::min(*limit, least.value_or(*limit));
      if (inside.empty()) return;
    }
  };
  // Lines "hierarchy:controllers:/path"; version 2 has the hierarchy 0 and no controllers.
  std::istringstream groups(read_text(root / "proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path inside = fs::path(line.substr(second + 1)).relative_path();
    if (controllers.empty()) walk_up(root / "sys/fs/cgroup", inside);
    if (controllers == "memory") walk_up(root / "sys/fs/cgroup/memory", inside);
  }
  return least;
}

}  // namespace

uint64_t Memory::usable() const {
  return std::min(available, limit.value_or(available));
}

Processor read_processor(const fs::path& root) {
  const std::string text = read_text(root / "proc/cpuinfo");
  Processor cpu;
  cpu.model = value_of(text, "model name");
  if (cpu.model.empty()) cpu.model = "unknown";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    cpu.threads += trimmed(line.substr(0, line.find(':'))) == "processor";
  std::istringstream words(value_of(text, "flags") + " " + value_of(text, "Features"));
  std::set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  for (const Instruction& instruction : kInstructions)
    if (flags.contains(instruction.flag)) cpu.instructions.emplace_back(instruction.name);
  return cpu;
}

Memory read_memory(const fs::path& root) {
  const std::string text = read_text(root / "proc/meminfo");
  Memory memory;
  memory.total = parse_number(value_of(text, "MemTotal")).value_or(0) << 10;
  memory.available = parse_number(value_of(text, "MemAvailable")).value_or(0) << 10;
  memory.limit = least_group_limit(root);
  return memory;
}

std::string machine_identity() {
  std::string identity = cat(read_processor().model, ", ", usable_cores(), " cores");
  std::error_code error;
  const fs::path program = "/proc/self/exe";
  const auto size = fs::file_size(program, error);
  const auto written = fs::last_write_time(program, error);
  if (!error) identity += cat(", program of ", size, " bytes, ", written.time_since_epoch().count());
  return identity;
}

std::vector<std::string> read_gpus(const fs::path& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& gpu : fs::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    const std::string model = value_of(read_text(gpu.path() / "information"), "Model");
    names.push_back(model.empty() ? "NVIDIA GPU" : model);
  }
  if (!names.empty()) return names;
  for (const auto& device : fs::directory_iterator(root / "dev", error)) {
    const std::string name = device.path().filename();
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos)
      names.push_back("NVIDIA GPU");
  }
  return names;
}

}  // namespace witan::cli

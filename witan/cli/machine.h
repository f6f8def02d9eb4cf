// What the machine is, as its kernel tells: processor, memory, GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/file.h"

namespace witan::cli {

struct Processor {
  std::string model;                      // "AMD EPYC 9655 96-Core Processor"; "unknown" where nothing says
  int threads = 0;                        // hardware threads of the machine
  std::vector<std::string> instructions;  // of those that matter here: "AVX2", "AVX-512 BF16" …
};

struct Memory {
  uint64_t total = 0, available = 0;  // bytes; available: without swapping
  std::optional<uint64_t> limit;      // of this process's control group, the smallest on the way up
  // What a run may use: the least of what is available and allowed.
  uint64_t usable() const;
};

// `root` is / but for tests, which bring a /proc and a /sys of their own. What cannot be read is left as it is.
Processor read_processor(const fs::path& root = "/");
Memory read_memory(const fs::path& root = "/");
// Which machine and which build of this program: figures measured on one hold on no other.
std::string machine_identity();
// Names of NVIDIA GPUs, from their driver; "NVIDIA GPU" for a device file without a name.
std::vector<std::string> read_gpus(const fs::path& root = "/");

}  // namespace witan::cli

// Reads the machine's properties from its kernel: processor, memory, GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::cli {

struct Processor {
  std::string model;                      // "AMD EPYC 9655 96-Core Processor"; "unknown" if not reported
  int threads = 0;                        // hardware threads of the machine
  std::vector<std::string> instructions;  // the instruction sets that Witan uses: "AVX2", "AVX-512 BF16" …
};

struct Memory {
  uint64_t total = 0, available = 0;  // bytes; available: without swapping
  std::optional<uint64_t> limit;      // the smallest limit of this process's control group and those above it
  // The memory that a run may use: the smallest of the available and the allowed memory.
  uint64_t usable() const;
};

// `root` is / except in tests, which provide their own /proc and /sys. Unreadable values keep their defaults.
Processor read_processor(const fs::path& root = "/");
Memory read_memory(const fs::path& root = "/");
// Identifies the machine and the build of this program: measurements only hold for the same ones.
std::string machine_identity();
// Names of NVIDIA GPUs, from their driver; "NVIDIA GPU" for a device file without a name.
std::vector<std::string> read_gpus(const fs::path& root = "/");

}  // namespace witan::cli

// The parts of `witan doctor`: the disk, the exchange between ranks and the packages (checks.cpp), the GPUs
// (doctor_gpu.cpp), and the speeds that plans need (speeds_for_plans.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/cli/command.h"
#include "witan/planner/speeds/ceilings.h"

namespace witan::cli {

struct DiskSpeed {
  uint64_t free = 0;             // bytes
  double fsync_s = 0;            // seconds to make one small write durable; median of a few
  double write_bytes_per_s = 0;  // for one larger file, made durable
};

// Writes about 64 MiB into a temporary file in `folder` (less on a nearly full disk) and removes it. Throws IoError, or
// DiskFullError if there is no space at all.
DiskSpeed measure_disk(const fs::path& folder);

// Two ranks exchange rows as experts do: rank 0 has 0 … 4 and sends [2, 3] of them, rank 1 has 10 … 15 and sends [3,
// 3].
struct ExchangeCheck {
  std::array<std::vector<int32_t>, 2> sent, received;
  bool ok() const;  // rank 0 has 0 1 10 11 12, rank 1 has 2 3 4 13 14 15
};

// Throws CommError if the ranks cannot communicate.
ExchangeCheck check_exchange();

struct PackageSet {
  std::string purpose;               // "make test"
  std::vector<std::string> missing;  // names of Debian packages
};

// The packages of scripts/setup.sh by purpose, beyond those that built this program, and which of them are missing by
// dpkg's records below `root`. Empty without dpkg.
std::vector<PackageSet> read_packages(const fs::path& root = "/");

// witan doctor --gpu: lists and measures the GPUs, as a page or JSON. Returns ExitCode::device if no GPU is usable; the
// page says why.
ExitCode doctor_gpu(const Context& context, bool json);

struct SpeedsForPlans {
  std::vector<Ceilings> ceilings;  // for 1, 2, 4, … ranks, in bfloat16
  double seconds = 0;              // duration of the measurements
  std::string kept_in;             // the file in which `plan` and `train` find them; empty: none is writable
};

// Measures calls on the first GPU, and exchanges between `devices` GPUs (at least one). Takes some 10 s. Throws
// DeviceError, OutOfMemoryError, CommError.
SpeedsForPlans measure_for_plans(int devices);

}  // namespace witan::cli

// Measures the speed of this machine with the real kernels: a small model (the default recipe, two blocks deep) runs a
// few steps on as many ranks and threads as the run will have, while every kernel is timed. So the rates include
// effects that a data sheet does not: cores share memory and clock, a matrix product packs its operands, and a thread
// pool splits a kernel imperfectly. Narrower models and shorter texts then show the fixed cost of a call.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "witan/planner/speeds/cpu_speeds.h"
#include "witan/planner/speeds/gpu_speeds.h"
#include "witan/tensor/device.h"
#include "witan/train/config/config.h"

namespace witan {

// The number of ranks and threads that compute at once, and their dtype.
struct Load {
  std::string dtype = "float32";
  int ranks = 1, threads = 1;  // per rank
  std::string gpu = {};        // the GPU's name, "NVIDIA H200"; empty: ranks compute on the CPU
  bool operator==(const Load&) const = default;
};

struct Ceilings {
  Load load;
  std::map<std::string, Cost> kernels;     // by name: the work of one rank, and its time in seconds
  std::map<std::string, double> exchange;  // bytes/s that a rank sends, by operation; empty for one rank
  double fma_flops = 0;   // CPU: FLOP/s of float32 multiply-adds in registers, all threads together; GPU: FLOP/s of a
                          // large matrix product in the load's dtype
  double f32_flops = 0;   // GPU: the same in float32; 0: unknown, and assumed to be as fast
  double copy_bytes = 0;  // bytes/s read and written by one rank while all copy arrays larger than the caches
  double between = 0;     // seconds outside kernels and collectives, per second inside kernels
  CpuSpeeds calls;        // speeds of CPU kernels by call; if empty, only the rates above are known
  std::optional<GpuSpeeds> speeds;  // speeds of GPUs; nullopt: typical ones
  bool busy = false;                // other programs used the machine, so that all rates are too low
};

// The share of core time that the threads of a load must get for the machine to count as idle. An idle machine gives
// them 0.97.
inline constexpr double kUndisturbed = 0.9;

// Whether other programs use this machine so much that measured rates would be too low. Takes about 0.03 s; GPUs are
// not checked.
bool machine_is_busy(const Load& load);

// Combines two measurements of the same load: the faster of each value, and `busy` of the second.
Ceilings fastest_of(const Ceilings& first, Ceilings second);

// Takes some seconds, and more on a busy machine, which is reported in `busy`. All ranks together should have at most
// as many threads as there are cores. On GPUs only the first is measured, without single kernels.
Ceilings measure_ceilings(const Load& load);

// The load to measure for a run: its own, or one thread per core if it has more threads than cores.
Load load_of(const RunConfig& config, int cores);

}  // namespace witan

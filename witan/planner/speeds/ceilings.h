// The speed of this machine, measured with the real kernels: a small model (the default recipe, two blocks deep) runs a
// few steps on as many ranks and threads as the run will have, while every kernel is timed. So the rates include
// effects that a data sheet does not: cores share memory and clock, a matrix product packs its operands, and a thread
// pool splits a kernel imperfectly. Narrower models and shorter texts then tell what a call costs beside its work.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "witan/planner/speeds/cpu_speeds.h"
#include "witan/planner/speeds/gpu_speeds.h"
#include "witan/tensor/device.h"
#include "witan/train/run/config.h"

namespace witan {

// How many ranks and threads compute at once, and in which dtype.
struct Load {
  std::string dtype = "float32";
  int ranks = 1, threads = 1;  // of each rank
  std::string gpu = {};        // its name, "NVIDIA H200"; empty: ranks compute on the CPU
  bool operator==(const Load&) const = default;
};

struct Ceilings {
  Load load;
  std::map<std::string, Cost> kernels;     // by name: the work of one rank, and its time in seconds
  std::map<std::string, double> exchange;  // bytes/s that a rank sends, by operation; empty on one rank
  double fma_flops = 0;                    // FLOP/s of float32 multiply-adds on registers, all threads together; of
                                           // GPUs those of a large product of matrices in the load's dtype
  double f32_flops = 0;                    // of GPUs the same in float32; 0: not known, and taken to be as fast
  double copy_bytes = 0;                   // bytes/s read and written by one rank while all copy arrays beyond caches
  double between = 0;                      // seconds outside kernels and collectives per second within kernels
  CpuSpeeds calls;                         // of kernels on the CPU, by call; without any: the rates above are all
  std::optional<GpuSpeeds> speeds;         // of GPUs; nothing: what is typical of them
  bool busy = false;                       // other programs used the machine: all of this is too slow
};

// The threads of a load must get this share of the core time that they want. An idle machine gives them 0.97.
inline constexpr double kUndisturbed = 0.9;

// Whether other programs use this machine so much that measurements would be too slow. Takes about 0.03 s; GPUs are not
// checked.
bool machine_is_busy(const Load& load);

// Of two measurements under the same load the faster value of each; `busy` of the second.
Ceilings fastest_of(const Ceilings& first, Ceilings second);

// Takes some seconds, more on a busy machine, which it reports in `busy`. The ranks' threads together should not exceed
// the cores. For GPUs only the first is measured, and no single kernels.
Ceilings measure_ceilings(const Load& load);

// The load to measure for a run: the run's own, or one thread per core if it has more threads than cores.
Load load_of(const RunConfig& config, int cores);

}  // namespace witan

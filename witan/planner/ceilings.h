// What this machine does in a second, measured on the very kernels: a small model (the default recipe, two blocks deep)
// takes a few steps on as many ranks and threads as the run will have, while every kernel is timed. So the rates hold
// what a data sheet does not: that cores share memory and clock, that a product of matrices packs its operands, and how
// well a pool of threads divides a kernel.
#pragma once

#include <map>
#include <string>

#include "witan/tensor/device.h"
#include "witan/train/run/config.h"

namespace witan {

// How many compute at once, and in what.
struct Load {
  std::string dtype = "float32";
  int ranks = 1, threads = 1;  // of each rank
  std::string gpu = {};        // its name, "NVIDIA H200"; empty: they compute on the CPU
  bool operator==(const Load&) const = default;
};

struct Ceilings {
  Load load;
  std::map<std::string, Cost> kernels;     // by name: what one rank did, and the seconds that it took
  std::map<std::string, double> exchange;  // bytes/s that a rank sends, by operation; empty on one rank
  double fma_flops = 0;                    // FLOP/s of float32 multiply-adds on registers, all threads together; of
                                           // GPUs those of a large product of matrices in the load's dtype
  double copy_bytes = 0;                   // bytes/s read and written by one rank while all copy arrays beyond caches
  double between = 0;                      // seconds outside kernels and exchanges for each second within kernels
  bool busy = false;                       // the machine did other work meanwhile: all of this is too slow
};

// Of the time that they want, the threads of a load must have so much of the cores. An idle machine gives them 0.97.
inline constexpr double kUndisturbed = 0.9;

// Whether this machine does so much else that measurements would be too slow. Takes about 0.03 s; GPUs are not looked
// at.
bool machine_is_busy(const Load& load);

// Of two measurements under the same load the faster one of everything; as busy as the second.
Ceilings fastest_of(const Ceilings& first, Ceilings second);

// Takes some seconds, more on a busy machine, which it tells. The ranks' threads together should not exceed the cores.
// Of GPUs the first is measured, and no kernels apart.
Ceilings measure_ceilings(const Load& load);

// The load whose ceilings tell about a run: the run's own, or one thread for each core where it has more than those.
Load load_of(const RunConfig& config, int cores);

}  // namespace witan

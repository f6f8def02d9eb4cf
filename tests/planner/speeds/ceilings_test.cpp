#include "witan/planner/speeds/ceilings.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/ceiling.h"

namespace witan {
namespace {

// Two threads that share one core resemble threads on a busy machine.
TEST(Ceilings, MachinesAreBusyIfThreadsWaitForCores) {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
  {
    ThreadPool pool(2);
    EXPECT_LT(kernels::measure_core_share(pool), 0.6);
    EXPECT_GT(kernels::measure_core_share(pool), 0);
  }
  EXPECT_TRUE(machine_is_busy({"float32", 2, 1}));
  EXPECT_FALSE(machine_is_busy({"bfloat16", 2, 1, "NVIDIA H100"})) << "a GPU is not shared";
  sched_setaffinity(0, sizeof all, &all);
}

}  // namespace
}  // namespace witan

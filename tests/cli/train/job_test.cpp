#include "witan/cli/train/job.h"

#include <gtest/gtest.h>

#include "support/free_port.h"
#include "support/processes.h"

namespace witan::cli {
namespace {

ProcessCeilings process(const std::string& host, uint64_t cores, int threads, double share = 1) {
  ProcessCeilings one;
  one.host = host;
  one.cores = cores;
  one.most_cores = static_cast<int>(one.cores.count());
  one.threads = threads;
  one.core_share = share;
  one.ceilings = {100.0 * threads, 10.0 * threads};
  return one;
}

TEST(JobCeilings, SumOverProcessesWithTheirOwnCores) {
  const JobCeilings job = sum_of_processes({process("a", 0b01, 1), process("a", 0b10, 1)});
  EXPECT_DOUBLE_EQ(job.ceilings.flops, 200);
  EXPECT_DOUBLE_EQ(job.ceilings.bytes, 20);
  EXPECT_FALSE(job.busy);
}

// The same core numbers on another host are different cores.
TEST(JobCeilings, SumOverHosts) {
  const JobCeilings job = sum_of_processes({process("a", 0b11, 2), process("b", 0b11, 2)});
  EXPECT_DOUBLE_EQ(job.ceilings.flops, 400);
  EXPECT_FALSE(job.busy);
}

TEST(JobCeilings, AreLimitedByTheCoresOfAHost) {
  // Four processes share two cores, so half a core each is not due to other work.
  const JobCeilings shared = sum_of_processes(std::vector<ProcessCeilings>(4, process("a", 0b11, 1, 0.5)));
  EXPECT_DOUBLE_EQ(shared.ceilings.flops, 200);
  EXPECT_FALSE(shared.busy);
  // All processes of a host with two cores have a quota of one core.
  ProcessCeilings limited = process("a", 0b11, 1, 0.5);
  limited.most_cores = 1;
  EXPECT_DOUBLE_EQ(sum_of_processes({limited, limited}).ceilings.flops, 100);
}

TEST(JobCeilings, ReportOtherWorkOnAHost) {
  EXPECT_TRUE(sum_of_processes({process("a", 0b01, 1), process("a", 0b10, 1, 0.5)}).busy);
  EXPECT_TRUE(sum_of_processes({process("a", 1, 1), process("b", 1, 1, 0.5)}).busy) << "another host is idle";
}

// Every process measures with the threads of its ranks, and all get the same sum.
TEST(JobCeilings, AreMeasuredByAllProcesses) {
  const int port = testing::free_port();
  const auto ended = testing::in_processes(2, [&](int index) -> std::string {
    ProcessWorld world(testing::launch_of(index, 2, port), {20, 20, 2});
    const JobCeilings job = measure_job(world, 2, 1, [&](ThreadPool& pool) {
      return kernels::DeviceCeilings{(index == 0 ? 1.0 : 3.0) * pool.threads(), 8.0 * pool.threads()};
    });
    // The cores of this host limit both figures by the same share of (1 + 3) of (8 + 8).
    return cat(job.ceilings.flops / job.ceilings.bytes);
  });
  testing::expect_whole(ended);
  for (const testing::Ended& process : ended) EXPECT_EQ(process.said, "0.25");
}

}  // namespace
}  // namespace witan::cli

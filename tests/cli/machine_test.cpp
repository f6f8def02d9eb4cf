#include "witan/cli/machine.h"

#include "cli/cli_support.h"

namespace witan::test {
namespace {

using cli::read_gpus;
using cli::read_memory;
using cli::read_processor;

TEST(MachineTest, ReadsProcessors) {
  const TempFolder root;
  write_text(root / "proc/cpuinfo",
             "processor\t: 0\nmodel name\t: Some Chip 9\nflags\t\t: fpu avx2 fma avx512f avx512_bf16\n\n"
             "processor\t: 1\nmodel name\t: Some Chip 9\nflags\t\t: fpu avx2\n");
  const auto cpu = read_processor(root.path());
  EXPECT_EQ(cpu.model, "Some Chip 9");
  EXPECT_EQ(cpu.threads, 2);
  EXPECT_EQ(cpu.instructions, (std::vector<std::string>{"AVX2", "FMA", "AVX-512", "AVX-512 BF16"}));
}

TEST(MachineTest, ReadsProcessorsOfOtherKinds) {
  const TempFolder root;
  write_text(root / "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd sve\n");
  EXPECT_EQ(read_processor(root.path()).model, "unknown");
  EXPECT_EQ(read_processor(root.path()).instructions, (std::vector<std::string>{"NEON", "SVE"}));
}

TEST(MachineTest, ReadsMemoryAndTheSmallestLimit) {
  const TempFolder root;
  write_text(root / "proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n");
  EXPECT_EQ(read_memory(root.path()).usable(), 1024u << 10);
  write_text(root / "proc/self/cgroup", "0::/jobs/one\n");
  write_text(root / "sys/fs/cgroup/jobs/one/memory.max", "max\n");
  write_text(root / "sys/fs/cgroup/jobs/memory.max", "500000\n");
  write_text(root / "sys/fs/cgroup/memory.max", "900000\n");
  const auto memory = read_memory(root.path());
  EXPECT_EQ(memory.total, 2048u << 10);
  EXPECT_EQ(memory.limit, 500000u);
  EXPECT_EQ(memory.usable(), 500000u);
}

TEST(MachineTest, ReadsLimitsOfTheOlderControlGroups) {
  const TempFolder root;
  write_text(root / "proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/y\n");
  write_text(root / "sys/fs/cgroup/memory/y/memory.limit_in_bytes", "777\n");
  write_text(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // unlimited
  EXPECT_EQ(read_memory(root.path()).limit, 777u);
}

TEST(MachineTest, ReadsGpus) {
  const TempFolder root;
  EXPECT_TRUE(read_gpus(root.path()).empty());
  write_text(root / "dev/nvidia0", "");
  write_text(root / "dev/nvidiactl", "");
  EXPECT_EQ(read_gpus(root.path()), std::vector<std::string>{"NVIDIA GPU"});
  write_text(root / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 5\n");
  EXPECT_EQ(read_gpus(root.path()), std::vector<std::string>{"NVIDIA H200"});
}

TEST(MachineTest, AnEmptyMachineIsNotAnError) {
  const TempFolder root;
  EXPECT_EQ(read_processor(root.path()).model, "unknown");
  EXPECT_EQ(read_processor(root.path()).threads, 0);
  EXPECT_EQ(read_memory(root.path()).total, 0u);
  EXPECT_FALSE(read_memory(root.path()).limit);
}

TEST(MachineTest, ReadsThisMachine) {
  EXPECT_GE(read_processor().threads, 1);
  EXPECT_GT(read_memory().total, 0u);
  EXPECT_LE(read_memory().available, read_memory().total);
}

}  // namespace
}  // namespace witan::test

#include "witan/base/resident.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "support/freed_memory.h"

namespace witan {
namespace {

TEST(Resident, CountsWhatIsTouchedAndRemembersTheMost) {
  constexpr size_t kBytes = 64 << 20;
  const auto before = read_resident();
  ASSERT_TRUE(before);
  EXPECT_GT(before->now, 0u);
  EXPECT_GE(before->peak, before->now);
  EXPECT_LE(before->files, before->now);
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  const auto touched = read_resident();
  ::munmap(memory, kBytes);
  const auto after = read_resident();
  constexpr uint64_t kSlack = 8 << 20;  // the kernel counts in batches
  EXPECT_GE(touched->now + kSlack, before->now + kBytes);
  EXPECT_LE(after->now, touched->now + kSlack - kBytes);
  EXPECT_GE(after->peak + kSlack, touched->now);
  EXPECT_GE(after->peak, before->peak);
  restart_resident_peak();
  EXPECT_LE(read_resident()->peak + kBytes, after->peak + kSlack);
}

TEST(Resident, FreedMemoryIsNotPartOfAPeakThatBegins) {
  const test::FreedMemory freed;
  if (!freed.is_kept()) GTEST_SKIP() << "the allocator keeps nothing";
  const uint64_t kept = read_resident()->now;
  restart_resident_peak();
  EXPECT_FALSE(freed.is_kept());
  EXPECT_LT(read_resident()->peak + freed.kBytes / 2, kept);
}

}  // namespace
}  // namespace witan

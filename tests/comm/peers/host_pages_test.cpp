#include "witan/comm/peers/host_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "support/processes.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::expect_whole;
using testing::on_processes;
using testing::on_ranks;
using testing::ProcessRank;
using testing::ThreadRank;

constexpr int64_t kBytes = (int64_t{1} << 20) + 5;

// Every rank writes its part and reads the parts of the others.
void write_and_read(HostGroup& group) {
  const auto pages = HostPages::make(group, kBytes);
  ASSERT_NE(pages, nullptr);
  EXPECT_EQ(pages->bytes(), kBytes);
  EXPECT_EQ(pages->ranks().size(), static_cast<size_t>(group.size()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pages->base()) % 4096, 0u);
  const auto meet = [&] { group.agree({Collective::Kind::barrier, {}, {}, {}, {}}); };
  EXPECT_TRUE(std::all_of(pages->base(), pages->base() + kBytes, [](std::byte b) { return b == std::byte{0}; }));
  meet();
  for (int64_t i = group.rank(); i < kBytes; i += group.size())
    pages->base()[i] = static_cast<std::byte>(i % 251 + group.rank());
  std::atomic_thread_fence(std::memory_order_seq_cst);
  meet();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kBytes; ++i) wrong += pages->base()[i] != static_cast<std::byte>(i % 251 + i % group.size());
  EXPECT_EQ(wrong, 0);
  meet();
}

TEST(HostPages, AreSharedByThreads) {
  for (const int ranks : {1, 3}) on_ranks(ranks, [](ThreadRank& rank) { write_and_read(*rank.everyone()); });
}

TEST(HostPages, AreSharedByProcesses) {
  expect_whole(on_processes(3, [](ProcessRank& rank) {
    write_and_read(*rank.everyone());
    return "";
  }));
}

}  // namespace
}  // namespace witan

#include "witan/train/signals/debug_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "support/thread_world.h"
#include "witan/base/process.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using testing::on_ranks;
using testing::ThreadRank;

TEST(DebugWait, ContinuesAfterItsFileIsRemovedAndHoldsOthersMeanwhile) {
  const test::TempFolder folder;
  const fs::path file = folder / "debug-rank-1";
  ThreadWorld world(2, {.deadline_seconds = 0.3, .debug_ranks = {1}});
  std::FILE* out = std::tmpfile();
  on_ranks(world, [&](ThreadRank& rank) {
    if (rank.rank == 1) {
      std::thread person([&] {
        while (!fs::exists(file)) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(600));
        EXPECT_THAT(read_file(file), HasSubstr("debug        rank 1 of 2 waits for a debugger: thread "));
        fs::remove(file);
      });
      wait_for_debugger(world, 1, file, out);
      EXPECT_FALSE(fs::exists(file));
      person.join();
    }
    rank.everyone()->barrier(rank.stream);
  });
  std::rewind(out);
  char line[200] = {};
  EXPECT_GT(std::fread(line, 1, sizeof line - 1, out), 0u);
  EXPECT_THAT(line, HasSubstr(cat("of process ", ::getpid())));
  EXPECT_THAT(line, HasSubstr(cat("gdb -p ", ::getpid(), " -ex 'thread find ")));
  std::fclose(out);
}

TEST(DebugWait, EndsWhenAnotherRankFails) {
  const test::TempFolder folder;
  const fs::path file = folder / "debug-rank-1";
  ThreadWorld world(2, {.deadline_seconds = 20, .debug_ranks = {1}});
  std::FILE* out = std::tmpfile();
  EXPECT_EQ(test::message_of<DataError>([&] {
              on_ranks(world, [&](ThreadRank& rank) {
                if (rank.rank == 0) throw DataError("no text");
                wait_for_debugger(world, 1, file, out);
              });
            }),
            "rank 0: no text");
  EXPECT_FALSE(fs::exists(file));
  std::fclose(out);
}

TEST(DebugWait, ExplainsHowToAttach) {
  EXPECT_THAT(how_to_attach(2, 4, "runs/a/debug-rank-2"),
              ::testing::MatchesRegex(
                  "debug        rank 2 of 4 waits for a debugger: thread [0-9]+ of process [0-9]+ on .*\n"
                  "attach       gdb -p [0-9]+ -ex 'thread find [0-9]+'   .set breakpoints, then `continue`.\n"
                  "or resume    rm runs/a/debug-rank-2\n"));
}

}  // namespace
}  // namespace witan

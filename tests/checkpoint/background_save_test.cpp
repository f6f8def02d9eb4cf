#include "witan/checkpoint/background_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "checkpoint/checkpoint_support.h"
#include "support/thread_world.h"
#include "witan/checkpoint/store.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;

// Runs body(the rank's saver, a group for training, its stream).
void on_saving_ranks(int size, const std::function<void(BackgroundSave&, Group&, Stream&)>& body, double timeout = 20,
                     double deadline = 20) {
  ThreadWorld threads(size, {.deadline_seconds = deadline});
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  threads.run([&](int rank) {
    testing::Rank own(1, int64_t{1} << 24);
    const auto training = threads.group(rank, all, "replicate");
    BackgroundSave saving(threads.group(rank, all, "checkpoint"), timeout);
    body(saving, *training, own.stream);
  });
}

CheckpointContent content_of(Stream& stream, int rank, int size, int64_t step) {
  return {step, model_state(stream, rank, size, static_cast<int>(step)), {{"loss", 0.5}}, {{"config.toml", "x = 1\n"}}};
}

// Training's collectives continue during the save, which uses its own arena.
TEST(BackgroundSave, SavesDuringOtherWork) {
  const TempFolder folder;
  on_saving_ranks(4, [&](BackgroundSave& saving, Group& training, Stream& stream) {
    for (const int64_t step : {1, 2, 3}) {
      saving.begin(folder.path(), content_of(stream, training.rank(), 4, step), 2);
      for (int i = 0; i < 200; ++i) {
        const Tensor sum = stream.empty({64}, DType::f64);
        std::ranges::fill(sum.span<double>(), 1.0);
        training.all_reduce(stream, sum);
        ASSERT_EQ(sum.data<double>()[63], 4.0);
      }
      const auto saved = saving.finish();
      ASSERT_TRUE(saved.has_value());
      EXPECT_EQ(saved->step, step);
      EXPECT_EQ(saved->folder, folder / step_folder_name(step));
      EXPECT_GT(saved->seconds, 0);
    }
    EXPECT_FALSE(saving.finish().has_value()) << "no save is in progress";
    EXPECT_LE(saving.stream().arena().high_water(), BackgroundSave::kArenaBytes);
    const auto state = blank_state(stream, training.rank(), 4);
    load_tensors(saving.world(), saving.stream(), open_checkpoint(folder / "step-3"), state);
    expect_equal(state, model_state(stream, training.rank(), 4, 3));
  });
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step-2", "step-3")) << "keep_last";
}

TEST(BackgroundSave, ReportsOnlyCompleteCheckpoints) {
  const TempFolder folder;
  put(folder / "file", "in the way");
  on_saving_ranks(2, [&](BackgroundSave& saving, Group& training, Stream& stream) {
    int told = 0;
    const auto tell = [&] { told += fs::exists(folder / "step-1" / kManifestName) ? 1 : 100; };
    saving.begin(folder.path(), content_of(stream, training.rank(), 2, 1), 1, tell);
    saving.finish();
    EXPECT_EQ(told, 1);
    saving.begin(folder / "file", content_of(stream, training.rank(), 2, 2), 1, tell);
    EXPECT_THROW(saving.finish(), CheckpointError);
    EXPECT_EQ(told, 1);
  });
}

TEST(BackgroundSave, ThrowsTheSameErrorOnAllRanks) {
  const TempFolder folder;
  put(folder / "file", "in the way");
  on_saving_ranks(3, [&](BackgroundSave& saving, Group& training, Stream& stream) {
    saving.begin(folder / "file", content_of(stream, training.rank(), 3, 1), 1);
    EXPECT_THAT(message_of<CheckpointError>([&] { saving.finish(); }),
                AllOf(HasSubstr((folder / "file").string()), HasSubstr("(rank 0)")));
    // The next save works as usual.
    saving.begin(folder / "elsewhere", content_of(stream, training.rank(), 3, 2), 1);
    EXPECT_TRUE(saving.finish().has_value());
  });
  EXPECT_THAT(names_in(folder / "elsewhere"), ElementsAre("step-2"));
}

// A failing step must not destroy the save of the previous step.
TEST(BackgroundSave, CompletesBeforeAFailingRankExits) {
  const TempFolder folder;
  const std::string message = message_of<DataError>([&] {
    on_saving_ranks(3, [&](BackgroundSave& saving, Group& training, Stream& stream) {
      saving.begin(folder.path(), content_of(stream, training.rank(), 3, 1), 1);
      require<DataError>(training.rank() != 1, "no more rows");
      training.barrier(stream);
    });
  });
  EXPECT_EQ(message, "rank 1: no more rows");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step-1"));
  verify_checkpoint(open_checkpoint(folder / "step-1"));
}

TEST(BackgroundSave, WaitsLongerForPartsThanForCalls) {
  const TempFolder folder;
  const std::function<void()> slow = [] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); };
  const auto body = [&](BackgroundSave& saving, Group& training, Stream& stream) {
    const int rank = training.rank();
    saving.begin(folder.path(), content_of(stream, rank, 3, 1), 1, rank == 1 ? slow : nullptr);
    EXPECT_TRUE(saving.finish().has_value());
    EXPECT_EQ(saving.world().deadline().seconds, 0.3) << "after the save";
    const DeadlineScope patience(saving.world(), saving.deadline("load it"));
    run_collectively(saving.world(), saving.stream(), [&] {
      if (rank == 2) slow();
    });
  };
  on_saving_ranks(3, body, 20, 0.3);
  verify_checkpoint(open_checkpoint(folder / "step-1"));
}

TEST(BackgroundSave, TimeoutsNamePartFolderAndFix) {
  const TempFolder folder;
  const std::string message = message_of<CommError>([&] {
    on_saving_ranks(
        3,
        [&](BackgroundSave& saving, Group& training, Stream& stream) {
          const int rank = training.rank();
          saving.begin(folder.path(), content_of(stream, rank, 3, 7), 1, [&saving, rank] {
            if (rank == 1) testing::until_failed(saving.world());
          });
          saving.finish();
        },
        0.6);
  });
  EXPECT_THAT(message, HasSubstr(cat("cannot save step 7 to ", folder.path().string(),
                                     ": the others waited 0.01 minutes for rank 1 (checkpoint_timeout_minutes). "
                                     "Complete checkpoints are intact, and the same command resumes from the newest; "
                                     "if it is only a slow disk, with --checkpoint-timeout-minutes 0.02")));
}

TEST(BackgroundSave, DoesNotWaitForAFailedRank) {
  const TempFolder folder;
  const auto start = std::chrono::steady_clock::now();
  const std::string message = message_of<DataError>([&] {
    on_saving_ranks(
        3,
        [&](BackgroundSave& saving, Group& training, Stream& stream) {
          if (training.rank() == 1) throw DataError("no more rows");
          saving.begin(folder.path(), content_of(stream, training.rank(), 3, 1), 1);
          saving.finish();
        },
        600, 600);
  });
  EXPECT_EQ(message, "rank 1: no more rows");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace witan

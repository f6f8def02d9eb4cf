#include "witan/checkpoint/background_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_support.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;

// Runs body(the rank's saver, a group for training, its stream).
void on_saving_ranks(int size, const std::function<void(BackgroundSave&, Group&, Stream&)>& body) {
  ThreadWorld threads(size, {.deadline_seconds = 20});
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  threads.run([&](int rank) {
    testing::Rank own(1, int64_t{1} << 24);
    const auto training = threads.group(rank, all, "replicate");
    BackgroundSave saving(threads.group(rank, all, "checkpoint"));
    body(saving, *training, own.stream);
  });
}

CheckpointContent content_of(Stream& stream, int rank, int size, int64_t step) {
  return {step, model_state(stream, rank, size, static_cast<int>(step)), {{"loss", 0.5}}, {{"config.toml", "x = 1\n"}}};
}

// Training's collectives go on meanwhile, and its arena is its own.
TEST(BackgroundSave, SavesWhileTheRanksDoOtherThings) {
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
    EXPECT_FALSE(saving.finish().has_value()) << "none is under way";
    EXPECT_LE(saving.stream().arena().high_water(), BackgroundSave::kArenaBytes);
    const auto state = blank_state(stream, training.rank(), 4);
    load_tensors(saving.world(), saving.stream(), open_checkpoint(folder / "step-3"), state);
    expect_equal(state, model_state(stream, training.rank(), 4, 3));
  });
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step-2", "step-3")) << "keep_last";
}

TEST(BackgroundSave, TellsOnceTheCheckpointIsCompleteAndOnlyThen) {
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

TEST(BackgroundSave, ItsErrorIsEveryRanks) {
  const TempFolder folder;
  put(folder / "file", "in the way");
  on_saving_ranks(3, [&](BackgroundSave& saving, Group& training, Stream& stream) {
    saving.begin(folder / "file", content_of(stream, training.rank(), 3, 1), 1);
    EXPECT_THAT(message_of<CheckpointError>([&] { saving.finish(); }),
                AllOf(HasSubstr((folder / "file").string()), HasSubstr("(rank 0)")));
    // The next one is as if nothing had been.
    saving.begin(folder / "elsewhere", content_of(stream, training.rank(), 3, 2), 1);
    EXPECT_TRUE(saving.finish().has_value());
  });
  EXPECT_THAT(names_in(folder / "elsewhere"), ElementsAre("step-2"));
}

// A step that fails must not take the save of the step before it along.
TEST(BackgroundSave, IsCompleteBeforeARankThatFailedIsGone) {
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

}  // namespace
}  // namespace witan

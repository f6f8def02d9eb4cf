#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_support.h"
#include "witan/checkpoint/store.h"

namespace witan {
namespace {

using test::message_of;
using test::on_ranks;

TEST(Together, ThrowsTheFirstFailingRanksErrorOnAll) {
  on_ranks(3, [](Group& world, Stream& stream) {
    run_collectively(world, stream, [] {});
    EXPECT_EQ(message_of<DiskFullError>([&] {
                run_collectively(world, stream, [&] {
                  if (world.rank() == 1) throw DiskFullError("no room");
                  if (world.rank() == 2) throw CheckpointError("later");
                });
              }),
              "no room (rank 1)");
    EXPECT_EQ(message_of<CheckpointError>([&] {
                run_collectively(world, stream, [&] {
                  if (world.rank() == 2) throw IoError("cannot read");
                });
              }),
              "cannot read (rank 2)");
    const std::string internal =
        message_of<Error>([&] { run_collectively(world, stream, [] { throw std::runtime_error("a bug"); }); });
    EXPECT_EQ(internal, "a bug (rank 0)");
  });
}

TEST(Together, OneRankChangesNoError) {
  on_ranks(1, [](Group& world, Stream& stream) {
    EXPECT_EQ(
        message_of<CheckpointError>([&] { run_collectively(world, stream, [] { throw CheckpointError("it"); }); }),
        "it");
  });
}

}  // namespace
}  // namespace witan

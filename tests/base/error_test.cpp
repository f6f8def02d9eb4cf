#include "witan/base/error.h"

#include <gtest/gtest.h>

#include "support/message_of.h"

namespace witan {
namespace {

template <class E>
ExitCode code_of() {
  return E("x").code();
}

TEST(Error, EachClassCarriesItsExitCode) {
  EXPECT_EQ(code_of<UsageError>(), ExitCode::usage);
  EXPECT_EQ(code_of<ConfigError>(), ExitCode::config);
  EXPECT_EQ(code_of<ShapeError>(), ExitCode::internal);
  EXPECT_EQ(code_of<DataError>(), ExitCode::data);
  EXPECT_EQ(code_of<CheckpointError>(), ExitCode::checkpoint);
  EXPECT_EQ(code_of<DivergedError>(), ExitCode::diverged);
  EXPECT_EQ(code_of<CommError>(), ExitCode::rank_lost);
  EXPECT_EQ(code_of<OutOfMemoryError>(), ExitCode::out_of_memory);
  EXPECT_EQ(code_of<DiskFullError>(), ExitCode::disk_full);
  EXPECT_EQ(code_of<DeviceError>(), ExitCode::device);
  EXPECT_EQ(code_of<IoError>(), ExitCode::data);
  EXPECT_EQ(code_of<CorruptionError>(), ExitCode::data);
  EXPECT_EQ(CorruptionError("x", ExitCode::checkpoint).code(), ExitCode::checkpoint);
}

// The numbers are a contract with the scripts that call witan.
TEST(Error, ExitCodesAreFrozen) {
  const std::pair<ExitCode, int> frozen[] = {
      {ExitCode::done, 0},          {ExitCode::internal, 1},   {ExitCode::usage, 2},    {ExitCode::config, 3},
      {ExitCode::data, 4},          {ExitCode::checkpoint, 5}, {ExitCode::diverged, 6}, {ExitCode::rank_lost, 7},
      {ExitCode::out_of_memory, 8}, {ExitCode::disk_full, 9},  {ExitCode::device, 10},  {ExitCode::preempted, 75},
      {ExitCode::interrupted, 130},
  };
  for (const auto& [code, number] : frozen) EXPECT_EQ(static_cast<int>(code), number);
}

TEST(Error, CatStreamsEveryPiece) {
  EXPECT_EQ(cat("[D=", int64_t{512}, "] ", 0.5, ' ', std::string("x")), "[D=512] 0.5 x");
}

TEST(Error, RequireThrowsOnlyWhenTheConditionFails) {
  EXPECT_NO_THROW(require<ShapeError>(true, "unused"));
  const auto fails = [] { require<ShapeError>(false, "rmsnorm: w must be [D=", 512, "], got [", 256, "]"); };
  EXPECT_EQ(test::message_of<ShapeError>(fails), "rmsnorm: w must be [D=512], got [256]");
}

}  // namespace
}  // namespace witan

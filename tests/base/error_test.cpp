#include "witan/base/error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <sstream>

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

TEST(Error, CatConcatenatesAllArguments) {
  EXPECT_EQ(cat("[D=", int64_t{512}, "] ", 0.5, ' ', std::string("x")), "[D=512] 0.5 x");
}

TEST(Error, CatWritesNumbersAsStreamsDo) {
  const auto streamed = [](auto value) {
    std::ostringstream out;
    out << value;
    return out.str();
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double real : {0.0, -0.0, 1.0, 100.0, 123456.0, 1234567.0, 999999.5, 0.1, 1.0 / 3, 1e-4, 1e-5, 1e100,
                            -2.5e-300, 5e-324, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(cat(real), streamed(real));
  EXPECT_EQ(cat(0.1F), streamed(0.1F));
  for (const int64_t whole : {std::numeric_limits<int64_t>::min(), int64_t{-1}, std::numeric_limits<int64_t>::max()})
    EXPECT_EQ(cat(whole), streamed(whole));
  EXPECT_EQ(cat(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(cat(true, std::filesystem::path("a b")), "1\"a b\"") << "what only a stream can write";
}

TEST(Error, RequireThrowsOnlyWhenTheConditionFails) {
  EXPECT_NO_THROW(require<ShapeError>(true, "unused"));
  const auto fails = [] { require<ShapeError>(false, "rmsnorm: w must be [D=", 512, "], got [", 256, "]"); };
  EXPECT_EQ(test::message_of<ShapeError>(fails), "rmsnorm: w must be [D=512], got [256]");
}

}  // namespace
}  // namespace witan

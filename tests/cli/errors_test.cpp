#include "witan/cli/errors.h"

#include <fmt/core.h>

#include <memory>
#include <new>

#include "cli/cli_support.h"

namespace witan::test {
namespace {

struct Reported {
  ExitCode code;
  std::string text;
};

template <class Body>
Reported report(Body body) {
  Capture err;
  const ExitCode code = cli::report_errors(err.file(), [&]() -> ExitCode {
    body();
    return ExitCode::preempted;
  });
  return {code, err.text()};
}

TEST(ErrorsTest, ACodeThatIsReturnedPassesInSilence) {
  const Reported reported = report([] {});
  EXPECT_EQ(reported.code, ExitCode::preempted);
  EXPECT_EQ(reported.text, "");
}

TEST(ErrorsTest, SuggestedCommandsAreThoseOfTheProgramThatWasCalled) {
  Capture err;
  const auto body = []() -> ExitCode { throw DataError("try `witan data x` or `witan plan`, witan as it is"); };
  cli::report_errors(err.file(), body, "build/witan");
  EXPECT_EQ(err.text(), "witan: error: try `build/witan data x` or `build/witan plan`, witan as it is\n");
}

TEST(ErrorsTest, EachClassHasItsExitCode) {
  EXPECT_EQ(report([] { throw UsageError("x"); }).code, ExitCode::usage);
  EXPECT_EQ(report([] { throw ConfigError("x"); }).code, ExitCode::config);
  EXPECT_EQ(report([] { throw DataError("x"); }).code, ExitCode::data);
  EXPECT_EQ(report([] { throw CheckpointError("x"); }).code, ExitCode::checkpoint);
  EXPECT_EQ(report([] { throw DivergedError("x"); }).code, ExitCode::diverged);
  EXPECT_EQ(report([] { throw CommError("x"); }).code, ExitCode::rank_lost);
  EXPECT_EQ(report([] { throw OutOfMemoryError("x"); }).code, ExitCode::out_of_memory);
  EXPECT_EQ(report([] { throw DiskFullError("x"); }).code, ExitCode::disk_full);
  EXPECT_EQ(report([] { throw CorruptionError("x", ExitCode::checkpoint); }).code, ExitCode::checkpoint);
  EXPECT_EQ(report([] { throw std::bad_alloc(); }).code, ExitCode::out_of_memory);
}

TEST(ErrorsTest, AUsersFaultIsOneLine) {
  EXPECT_EQ(report([] { throw DataError("my.txt: it is empty"); }).text, "witan: error: my.txt: it is empty\n");
  EXPECT_FALSE(contains(report([] { throw std::bad_alloc(); }).text, "bug"));
}

// A name of a file can set a terminal's title or hide what precedes it.
TEST(ErrorsTest, ControlCharactersOfInputDoNotReachTheTerminal) {
  const auto text = [](const std::string& message) { return report([&] { throw DataError(message); }).text; };
  EXPECT_EQ(text("\x1b]0;title\a.txt: it is\r empty\b\x7f"),
            "witan: error: \\x1B]0;title\\x07.txt: it is\\x0D empty\\x08\\x7F\n");
  EXPECT_EQ(text("\xC2\x9B"
                 "31m \xFF"),
            "witan: error: \\xC2\\x9B31m \\xFF\n")
      << "U+009B, and no UTF-8";
  EXPECT_EQ(text("Größe 专家:\n\tof two lines"), "witan: error: Größe 专家:\n\tof two lines\n");
  EXPECT_EQ(report([] { throw std::out_of_range("\x1b[2J"); }).text.find('\x1b'), std::string::npos);
}

TEST(ErrorsTest, FailedFileOperationsAreNoBugs) {
  const Reported refused = report([] { std::filesystem::create_directory("/proc/witan/x"); });
  EXPECT_EQ(refused.code, ExitCode::data);
  EXPECT_TRUE(contains(refused.text, "/proc/witan/x")) << refused.text;
  EXPECT_FALSE(contains(refused.text, "bug")) << refused.text;
  const Reported full = report([] {
    throw std::filesystem::filesystem_error("write", "x", std::make_error_code(std::errc::no_space_on_device));
  });
  EXPECT_EQ(full.code, ExitCode::disk_full);
}

TEST(ErrorsTest, AnOutputThatTakesNoMoreIsNoBug) {
  const Reported full = report([] {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen("/dev/full", "w"), &std::fclose);
    std::setvbuf(out.get(), nullptr, _IONBF, 0);
    fmt::print(out.get(), "text");
  });
  EXPECT_EQ(full.code, ExitCode::disk_full) << full.text;
  EXPECT_FALSE(contains(full.text, "bug")) << full.text;
}

TEST(ErrorsTest, EverythingElseIsCalledABug) {
  for (const Reported& reported :
       {report([] { throw std::out_of_range("index 7"); }), report([] { throw ShapeError("rmsnorm: index 7"); })}) {
    EXPECT_EQ(reported.code, ExitCode::internal);
    EXPECT_TRUE(contains(reported.text, "index 7")) << reported.text;
    EXPECT_TRUE(contains(reported.text, "this is a bug in Witan")) << reported.text;
  }
  EXPECT_EQ(report([] { throw 7; }).code, ExitCode::internal);
}

}  // namespace
}  // namespace witan::test

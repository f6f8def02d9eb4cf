#include "witan/cli/args/sampling_args.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace witan::test {
namespace {

TEST(SamplingArgs, StopTextsMayHaveEscapes) {
  const auto stop = [](const std::string& text) {
    CLI::App app("test", "test");
    cli::SamplingArgs args;
    args.add(app);
    std::vector<std::string> words = {text, "--stop"};  // the last one first
    app.parse(words);
    return args.stops().at(0);
  };
  EXPECT_EQ(stop(R"(\n\n)"), "\n\n");
  EXPECT_EQ(stop(R"(a\tb\r)"), "a\tb\r");
  EXPECT_EQ(stop(R"(\\n)"), R"(\n)") << "an escaped backslash";
  EXPECT_EQ(stop(R"(\boxed{\)"), R"(\boxed{\)") << "other backslashes are text";
  EXPECT_EQ(stop("\n"), "\n");
}

}  // namespace
}  // namespace witan::test

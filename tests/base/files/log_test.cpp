#include "witan/base/files/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <thread>
#include <vector>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

TEST(Log, LinesCarryTimeAndLevel) {
  const test::TempFolder folder;
  const auto path = folder / "log.txt";
  {
    const Log log(path.string());
    log.info("step 1 {not a format}");
    log.warn("slow disk");
    log.error("lost");
  }
  Log(path.string()).info("appended");
  const std::string stamp = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z )";
  EXPECT_TRUE(std::regex_match(
      read_file(path), std::regex(stamp + R"(info step 1 \{not a format\}\n)" + stamp + R"(warning slow disk\n)" +
                                  stamp + R"(error lost\n)" + stamp + R"(info appended\n)")))
      << read_file(path);
}

TEST(Log, IsFlushedAtOnce) {
  const test::TempFolder folder;
  const Log log((folder / "log.txt").string());
  log.info("visible before a crash");
  EXPECT_NE(read_file(folder / "log.txt").find("visible before a crash"), std::string::npos);
}

TEST(Log, WritesLinesOfThreadsWhole) {
  const test::TempFolder folder;
  const Log log((folder / "log.txt").string());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) log.info("0123456789");
    });
  for (auto& thread : threads) thread.join();
  const std::string text = read_file(folder / "log.txt");
  const std::regex line("[^\n]{24} info 0123456789\n");
  EXPECT_EQ(std::distance(std::sregex_iterator(text.begin(), text.end(), line), std::sregex_iterator()), 200);
}

TEST(Log, DefaultDropsEverything) {
  EXPECT_NO_THROW(Log().error("nobody hears"));
}

TEST(Log, RefusesUnwritablePaths) {
  const test::TempFolder folder;
  const std::string path = (folder / "file").string() + "/log.txt";
  write_file_atomically(folder / "file", "in the way");
  EXPECT_NE(test::message_of<IoError>([&] { Log log(path); }).find(path), std::string::npos);
}

}  // namespace
}  // namespace witan

#include "witan/report/chrome_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using Json = nlohmann::json;

// The fields that the format's documentation lists for each kind of event.
TEST(ChromeTrace, WritesEventsOfTheFormat) {
  ChromeTrace trace(3, "rank 3: shard \"1\"", 1'000'000);
  trace.name_track(2, "computation");
  trace.slice(2, "gemm", 1'002'500, 1'010'000, {{"module", json_text("layers.0\n")}, {"flops", "24"}});
  trace.counter("memory", 1'010'000, {{"weights", "5"}, {"activations", "7"}});
  const Json json = Json::parse(trace.json());
  EXPECT_EQ(json["displayTimeUnit"], "ms");
  const Json& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0],
            Json::parse(R"({"ph":"M","pid":3,"name":"process_name","args":{"name":"rank 3: shard \"1\""}})"));
  EXPECT_EQ(events[2], Json::parse(R"({"ph":"M","pid":3,"tid":2,"name":"thread_name","args":{"name":"computation"}})"));
  EXPECT_EQ(events[4], Json::parse(R"({"ph":"X","pid":3,"tid":2,"ts":2.5,"dur":7.5,"name":"gemm",
                                       "args":{"module":"layers.0\n","flops":24}})"));
  EXPECT_EQ(events[5],
            Json::parse(R"({"ph":"C","pid":3,"ts":10.0,"name":"memory","args":{"weights":5,"activations":7}})"));
}

TEST(ChromeTrace, MergesTraces) {
  const test::TempFolder folder;
  std::vector<fs::path> files;
  for (const int rank : {0, 1}) {
    ChromeTrace trace(rank, "rank", 0);
    trace.slice(1, "step", 0, 1000 * (rank + 1));
    files.push_back(folder / std::to_string(rank));
    write_file_atomically(files.back(), trace.json());
  }
  merge_chrome_traces(files, folder / "all");
  const Json events = Json::parse(read_file(folder / "all"))["traceEvents"];
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[2]["pid"], 0);
  EXPECT_EQ(events[5]["pid"], 1);
  EXPECT_EQ(events[5]["dur"], 2.0);

  write_file_atomically(files[1], "{\"traceEvents\":[]}");
  EXPECT_EQ(test::message_of<CorruptionError>([&] { merge_chrome_traces(files, folder / "all"); }),
            files[1].string() + ": this is not a trace written by Witan");
}

// Names come from files and paths, so they may hold any bytes.
TEST(ChromeTrace, ReplacesInvalidUtf8) {
  EXPECT_EQ(Json::parse(json_text("a\xff z")).get<std::string>(), "a\xEF\xBF\xBD z");
}

}  // namespace
}  // namespace witan

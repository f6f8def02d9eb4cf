#include <sched.h>

#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "support/message_of.h"
#include "witan/cli/doctor/checks.h"
#include "witan/comm/processes/message_engine.h"
#include "witan/tensor/cuda.h"

namespace witan::test {
namespace {

TEST(ExchangeCheckTest, TwoRanksExchangeUnevenRows) {
  const auto check = cli::check_exchange();
  EXPECT_EQ(check.received[0], (std::vector<int32_t>{0, 1, 10, 11, 12}));
  EXPECT_EQ(check.received[1], (std::vector<int32_t>{2, 3, 4, 13, 14, 15}));
  EXPECT_TRUE(check.ok());
  auto wrong = check;
  wrong.received[1].back() = 0;
  EXPECT_FALSE(wrong.ok());
}

TEST(DiskSpeedTest, MeasuresAndLeavesNoFiles) {
  const TempFolder folder;
  const auto speed = cli::measure_disk(folder.path());
  EXPECT_GT(speed.free, 0u);
  EXPECT_GE(speed.fsync_s, 0);
  EXPECT_GT(speed.write_bytes_per_s, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DiskSpeedTest, ErrorsNameAMissingFolder) {
  const TempFolder folder;
  EXPECT_TRUE(contains(message_of<IoError>([&] { cli::measure_disk(folder / "none"); }), "none"));
}

// On one core, doctor measures only one rank with one thread, which takes a third of the time.
class OneCore {
 public:
  OneCore() {
    sched_getaffinity(0, sizeof all_, &all_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
      if (CPU_ISSET(core, &all_)) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneCore() { sched_setaffinity(0, sizeof all_, &all_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  cpu_set_t all_{};
};

TEST(DoctorTest, PrintsFindings) {
  const Said said = witan({"doctor"});
  EXPECT_EQ(said.code, 0);
  EXPECT_EQ(said.err, "");
  for (const char* piece :
       {"processor  ", "usable, of", "memory  ", "fsync", "GFLOP/s", "corpus  ", "packages  ", "GPUs  ", "messages  ",
        "rank 0 has 0 1 2 3 4         splits [2 3]  receives 0 1 10 11 12\n",
        "rank 1 has 10 11 12 13 14 15 splits [3 3]  receives 2 3 4 13 14 15\n              ok\n"})
    EXPECT_TRUE(contains(said.out, piece)) << piece << " in\n" << said.out;
  EXPECT_TRUE(contains(said.out, "\nready: ") != contains(said.out, "problem  ")) << said.out;
}

TEST(DoctorTest, PrintsJson) {
  const OneCore core;
  const Said said = witan({"doctor", "--json"});
  ASSERT_EQ(said.code, 0);
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json["processor"]["usable_cores"], 1);
  EXPECT_GT(json["memory"]["total"].get<uint64_t>(), 0u);
  EXPECT_GT(json["ceiling"]["fma_gflops"].get<double>(), 0);
  EXPECT_GT(json["disk"]["write_bytes_per_s"].get<double>(), 0);
  EXPECT_TRUE(json["exchange_ok"].get<bool>());
  EXPECT_TRUE(json["problems"].is_array());
  EXPECT_EQ(json["ucx"].is_null(), !why_no_ucx().empty());
  for (const auto& load : json["kernels"]) EXPECT_TRUE(load["busy"].is_boolean());
}

// With a GPU it is measured; without one, the reason is given.
TEST(DoctorTest, ExaminesGpus) {
  const Said said = witan({"doctor", "--gpu"});
  EXPECT_EQ(said.err, "");
  for (const char* piece : {"driver  ", "this program  built with"})
    EXPECT_TRUE(contains(said.out, piece)) << piece << " in\n" << said.out;
  if (cuda::devices() > 0) {
    EXPECT_EQ(said.code, 0);
    EXPECT_TRUE(contains(said.out, cuda::properties(0).name)) << said.out;
    EXPECT_TRUE(contains(said.out, "can be used")) << said.out;
  } else {
    EXPECT_EQ(said.code, 10);
    EXPECT_TRUE(contains(said.out, "problem       " + cuda::why_none() + "\n")) << said.out;
    EXPECT_TRUE(contains(said.out, "\n\nno usable GPU; see above\n")) << said.out;
  }
}

TEST(DoctorTest, PrintsJsonOfGpus) {
  const Said said = witan({"doctor", "--gpu", "--json"});
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json["gpus"].size(), static_cast<size_t>(cuda::devices()));
  EXPECT_EQ(said.code, cuda::devices() > 0 ? 0 : 10);
  EXPECT_EQ(json["built_with_cuda"] == "", !cuda::built());
  EXPECT_EQ(json["libraries"].size(), cuda::built() ? 3u : 0u);
  if (cuda::devices() == 0) {
    EXPECT_EQ(json["problems"][0], cuda::why_none());
  }
  for (const auto& gpu : json["gpus"]) {
    EXPECT_GT(gpu["copy_bytes_per_s"].get<double>(), 1e10);
    EXPECT_GT(gpu["bf16_flops_per_s"].get<double>(), 1e11);
  }
}

TEST(DoctorTest, ReportsAnUnwritableFolder) {
  const OneCore core;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path("/proc");
  const Said said = witan({"doctor"});
  std::filesystem::current_path(before);
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "problem       /proc is not writable")) << said.out;
  EXPECT_TRUE(contains(said.out, "not ready")) << said.out;
}

TEST(PackagesTest, NamesMissingPackages) {
  const TempFolder root;
  for (const char* file : {"perl-doc.list", "libgtest-dev:amd64.list", "clang-tidy.md5sums"})
    write_text(root / (std::string("var/lib/dpkg/info/") + file), "");
  const auto sets = cli::read_packages(root.path());
  ASSERT_EQ(sets.size(), 4u);
  EXPECT_EQ(sets[0].purpose, "the default text");
  EXPECT_TRUE(sets[0].missing.empty());
  EXPECT_EQ(sets[1].missing, std::vector<std::string>{"libgmock-dev"});
  EXPECT_EQ(sets[3].missing, (std::vector<std::string>{"clang-format", "clang-tidy", "shellcheck"}));
}

TEST(PackagesTest, SaysNothingWithoutDpkg) {
  EXPECT_TRUE(cli::read_packages(TempFolder().path()).empty());
}

}  // namespace
}  // namespace witan::test

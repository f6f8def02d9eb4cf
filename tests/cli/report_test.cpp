// witan report: what it shows of runs, and where it writes their pages.
#include <gmock/gmock.h>
#include <unistd.h>

#include "cli/runs/runs_support.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ReportTest : public MadeUpRuns {
 protected:
  Said report(std::vector<std::string> args = {}) const {
    args.insert(args.begin(), "report");
    args.insert(args.end(), {"--runs-folder", runs_.string()});
    return witan(args);
  }
  void add_steps(const std::string& name, const std::vector<double>& speeds) const {
    MetricsWriter out(runs_ / name / "metrics.jsonl");
    for (size_t i = 0; i < speeds.size(); ++i) {
      StepEvent step;
      step.step = static_cast<int64_t>(i) + 1;
      step.tokens_per_s = speeds[i];
      step.gflops = speeds[i] / 1000;
      out.append(step);
    }
  }
};

// The process is another user, who owns none of the files, while this stands: root may write everywhere.
class AsNobody {
 public:
  AsNobody() {
    if (::geteuid() == 0) changed_ = ::seteuid(65534) == 0;
  }
  ~AsNobody() {
    if (changed_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }

 private:
  bool changed_ = false;
};

TEST_F(ReportTest, TheSpeedIsThatOfTheMedianStepHereAndOnThePage) {
  make("a", 0, "", "");
  add_steps("a", {1000, 31'000, 32'000, 33'000, 15'000});
  const Said said = report({"a"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("\nspeed         31.0 K tokens/s, 31.0 GFLOP/s in the median step\n"));
  EXPECT_THAT(
      read_text(runs_ / "a/report.html"),
      HasSubstr("<dt>Tokens per second</dt><dd class=\"value\">31.0\u00a0K</dd><dd class=\"remark\">in the median "
                "step; 31\u00a0GFLOP/s"));
}

TEST_F(ReportTest, TheFiguresOfSomebodyElsesRunAreShown) {
  make("a", 20);
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::permissions(runs_ / "a", fs::perms(0555));
  Said said;
  {
    const AsNobody nobody;
    said = report({"a"});
  }
  fs::permissions(runs_ / "a", fs::perms(0755));
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("steps         20 of 100"));
  EXPECT_THAT(said.out, HasSubstr("state         finished"));
  EXPECT_THAT(said.out, Not(HasSubstr("report.html")));
  EXPECT_THAT(said.err, StartsWith("warning: report.html was not written: "));
  EXPECT_THAT(said.err, HasSubstr("Permission denied; --output FILE writes it elsewhere\n"));
  EXPECT_FALSE(fs::exists(runs_ / "a/report.html"));
}

TEST_F(ReportTest, DamagedLinesAreLeftOutAndNamed) {
  make("a", 20);
  const fs::path metrics = runs_ / "a/metrics.jsonl";
  std::string text = read_text(metrics);
  text[text.find(R"("step":3,)")] = '#';
  write_text(metrics, text);
  const Said said = report({"a"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("steps         20 of 100"));
  EXPECT_THAT(said.err, StartsWith("warning: 1 of the "));
  EXPECT_THAT(said.err, HasSubstr(" of " + metrics.string() +
                                  " cannot be read and are left out; the first: " + metrics.string() + ": line "));
}

TEST_F(ReportTest, ThePageGoesWhereItIsAskedFor) {
  make("a", 20);
  const fs::path page = folder_ / "mine.html";
  const Said said = report({"a", "--output", page.string()});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("report        " + page.string() + "\n"));
  EXPECT_THAT(read_text(page), StartsWith("<!DOCTYPE html>"));
  EXPECT_FALSE(fs::exists(runs_ / "a/report.html"));
}

// A page that was asked for by name is no page that may be left out.
TEST_F(ReportTest, APageThatCannotBeWrittenWhereItIsAskedForIsAnError) {
  make("a", 20);
  const Said said = report({"a", "--output", folder_ / "none/mine.html"});
  EXPECT_EQ(said.code, 4) << said.err;
  EXPECT_THAT(said.err, HasSubstr("mine.html"));
  EXPECT_THAT(said.out, HasSubstr("state         finished")) << "the figures are shown all the same";
}

}  // namespace
}  // namespace witan::test

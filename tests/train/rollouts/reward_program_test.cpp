#include "witan/train/rollouts/reward_program.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "support/comes_true.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using test::message_of;

SampledAnswer answered(const std::string& completion, const std::string& answer) {
  return {"question", completion, answer};
}

std::vector<double> rewards(const std::string& command, const std::vector<SampledAnswer>& sampled) {
  return run_reward_program({command, 60}, sampled);
}

TEST(RewardProgram, ReadsAnswersAndWritesNumbers) {
  const std::vector<SampledAnswer> sampled = {answered("a \"b\"\n", "1"), answered("\xff", "2"), answered("c", "3")};
  EXPECT_EQ(rewards("while read line; do echo ' 0.5 '; done", sampled), (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(rewards("sed 's/.*\"answer\":\"\\([0-9]*\\)\".*/\\1/'", sampled), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(rewards("no such program", {}), std::vector<double>());
}

SampledAnswer turn(const std::string& completion, const std::string& answer, bool final = false) {
  SampledAnswer sampled = answered(completion, answer);
  sampled.turn = 1;
  sampled.final = final;
  sampled.messages = R"([{"role": "assistant", "content": "say \"completion\":\"add(1,1)\""}])";
  return sampled;
}

std::vector<ProgramReply> replies(const std::string& command, const std::vector<SampledAnswer>& sampled) {
  return run_conversation_program({command, 60}, sampled);
}

// The program of docs/rl.md's example: calls are run, and no text that an answer quotes is taken for a field.
TEST(RewardProgram, OfTheExampleRunsCalls) {
  const std::string program = cat("awk -f ", WITAN_SOURCE_DIR, "/examples/tools/tools.awk");
  const std::vector<ProgramReply> all =
      replies(program, {turn("add(3,18)", "21"), turn("multiply(7,3)", "21"), turn("21", "21"), turn("22", "21"),
                        turn("add(3,18)!", "21"), turn("", "21"), turn("x\",\"completion\":\"add(3,18)", "21")});
  ASSERT_EQ(all.size(), 7);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(all[i].messages, (std::vector<std::string>{R"({"role": "tool", "content": "21"})"}));
    EXPECT_EQ(all[i].reward, 0);
  }
  const std::vector<double> rest = {1, 0, 0, 0, 0};
  for (size_t i = 0; i < rest.size(); ++i) {
    EXPECT_EQ(all[2 + i].reward, rest[i]) << i;
    EXPECT_TRUE(all[2 + i].messages.empty()) << i;
  }
}

TEST(RewardProgram, RepliesToTurnsWithMessages) {
  const std::vector<ProgramReply> all =
      replies(R"(echo '{"messages": [{"role": "user", "content": "And?"}, {"role": "tool", "content": {"x": [1]}}]}'
                 echo '{"messages": [], "reward": 2}'; echo '{"messages": null, "reward": 3}'; echo 4
                 echo '{"messages": "[{\"role\": \"tool\", \"content\": \"5\"}]", "reward": 5}')",
              {turn("a", "1"), turn("a", "1"), turn("a", "1"), turn("a", "1", true), turn("a", "1", true)});
  ASSERT_EQ(all.size(), 5);
  EXPECT_EQ(all[0].messages.size(), 2);
  EXPECT_FALSE(all[0].reward);
  for (const size_t i : {1, 2, 3}) {
    EXPECT_EQ(all[i].reward, static_cast<double>(i + 1));
    EXPECT_TRUE(all[i].messages.empty());
  }
  EXPECT_EQ(all[4].messages, (std::vector<std::string>{R"({"role": "tool", "content": "5"})"}));
  // The program is given these lines.
  const test::TempFolder folder;
  const std::string read = (folder / "read").string();
  replies(cat("tee ", read, " | while read line; do echo 1; done"), {turn("a", "1", true)});
  EXPECT_EQ(read_file(read),
            R"({"answer":"1","completion":"a","final":true,"messages":[{"content":"say \"completion\":\"add(1,1)\"",)"
            R"("role":"assistant"}],"prompt":"question","turn":1})"
            "\n");
}

TEST(RewardProgram, IsNamedWithMessagesThatCannotBe) {
  const auto expect = [](const std::string& line, const std::string& part, bool final = false) {
    const std::string message =
        message_of<RewardError>([&] { replies(cat("echo '", line, "'"), {turn("a", "1", final)}); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(R"({"messages": []})", "(it has no finite number)");
  expect(R"({"messages": 7})", "(its \"messages\" are no list)");
  expect(R"({"messages": [7]})", "line 1 of its output is neither");
  expect(R"({"messages": [{"content": "x"}]})", "role");
  expect(R"({"messages": [{"role": "assistant", "content": "x"}]})", "(no message follows the assistant");
  expect(R"({"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "x"}]})",
         "what it says is sampled");
  expect(R"({"messages": [{"role": "tool", "content": "x"}], "messages": []})", "line 1 of its output is neither");
  expect(R"({"messages": [{"role": "tool", "content": "x"})", "line 1 of its output is neither");
  expect(cat(R"({"messages": )", std::string(100, '['), std::string(100, ']'), "}"), "line 1 of its output is neither");
  expect(R"({"messages": [{"role": "tool", "content": "x"}]})", "its answer is \"final\": no turn can follow it", true);
  const auto message = [](const std::string& command) {
    return message_of<RewardError>([&] { replies(command, {turn("a", "1")}); });
  };
  EXPECT_NE(message("printf '{\"reward\": 1, \"why\": \"\\377\"}\\n'").find("line 1 of its output is neither"),
            std::string::npos);
  EXPECT_NE(message("yes x | tr -d '\\n'").find("it wrote more than 65536 bytes for 1 answers"), std::string::npos);
}

// Messages are nothing that a program which judges single answers may write.
TEST(RewardProgram, WritesMessagesInConversationsAlone) {
  EXPECT_EQ(rewards(R"(echo '{"messages": [{"role": "tool", "content": "x"}], "reward": 1}')", {answered("a", "1")}),
            (std::vector<double>{1}));
  EXPECT_NE(message_of<RewardError>([] {
              rewards(R"(echo '{"messages": [{"role": "tool", "content": "x"}]}')", {answered("a", "1")});
            }).find("is neither a finite number nor {\"reward\": NUMBER}: {\"messages\""),
            std::string::npos);
}

// More input than a pipe holds, to a program that writes before it has read all, and to one that reads nothing.
TEST(RewardProgram, TakesMoreThanAPipeHolds) {
  const std::vector<SampledAnswer> sampled(64, answered(std::string(20'000, 'x'), "1"));
  EXPECT_EQ(rewards("while read line; do echo 1; done", sampled).size(), 64);
  EXPECT_EQ(rewards("exec <&-; yes 2 | head -n 64", sampled), std::vector<double>(64, 2));
}

TEST(RewardProgram, IsNamedWithWhatItDidWrong) {
  const std::vector<SampledAnswer> two = {answered("a", "1"), answered("b", "2")};
  const auto message = [&](const std::string& command, double seconds = 20) {
    return message_of<RewardError>([&] { run_reward_program({command, seconds}, two); });
  };
  const auto expect = [](const std::string& found, const std::string& part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect(message("echo oh dear >&2; exit 3"), "it ended with code 3; it wrote to its standard error: oh dear");
  expect(message("kill -9 $$"), "it was killed by signal 9");
  expect(message("echo 1"), "it wrote 1 rewards for 2 answers");
  expect(message("seq 3"), "it wrote 3 rewards for 2 answers");
  expect(message("echo 1; echo great"),
         "line 2 of its output is neither a finite number nor {\"reward\": NUMBER}: great");
  expect(message("echo 1; echo nan"), "line 2 of its output is neither a finite number nor {\"reward\": NUMBER}: nan");
  expect(message("echo 1; echo '{\"reward\": null}'"), "line 2 of its output is neither");
  expect(message("echo 1; echo '{\"score\": 1}'"), "line 2 of its output is neither");
  expect(message("echo 1; echo '{\"reward\": 1e999}'"), "line 2 of its output is neither");
  expect(message("echo 1; echo '{\"reward\": 1'"), "line 2 of its output is neither");
  expect(message("echo 1; echo"), "line 2 of its output is neither");
  expect(message("yes"), "it wrote more than 8192 bytes for 2 answers");
  expect(message("echo 1; sleep 1000", 0.2), "it has not ended after reward_timeout = 0.2 s");
  expect(message("exec >&- 2>&-; sleep 1000", 0.2), "it has not ended after reward_timeout = 0.2 s");
}

// A process that the program started must not go on after it.
TEST(RewardProgram, IsKilledWithWhatItStarted) {
  const test::TempFolder folder;
  const std::string pid = (folder / "pid").string();
  message_of<RewardError>([&] {
    run_reward_program({cat("sleep 1000 & echo $! > ", pid, "; wait"), 0.5}, {answered("a", "1")});
  });
  const std::string state = cat("/proc/", std::stoi(read_file(pid)), "/stat");
  EXPECT_TRUE(test::comes_true([&] {
    std::ifstream file(state);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return text.empty() || text.find(") Z ") != std::string::npos;
  }));
}

TEST(RewardProgram, MayWriteObjects) {
  EXPECT_EQ(rewards("echo '{\"reward\": 0.25, \"why\": \"short\"}'; echo 2", {answered("a", "1"), answered("b", "2")}),
            (std::vector<double>{0.25, 2}));
}

// Each of three programs writes the number of lines that it has read, once for each.
TEST(RewardProgram, SharesAnswersAmongWorkers) {
  const std::vector<SampledAnswer> sampled(8, answered("a", "1"));
  RewardProgram program{.command = "awk 'END { for (i = 0; i < NR; ++i) print NR }'", .workers = 3};
  EXPECT_EQ(run_reward_program(program, sampled), (std::vector<double>{2, 2, 3, 3, 3, 3, 3, 3}));
  program.workers = 32;
  EXPECT_EQ(run_reward_program(program, sampled), std::vector<double>(8, 1));
}

// The first two runs of a program fail.
TEST(RewardProgram, IsRunAgain) {
  const test::TempFolder folder;
  const std::string runs = (folder / "runs").string();
  RewardProgram program{.command = cat("echo x >> ", runs, "; test $(wc -l < ", runs, ") -ge 3 || exit 5; echo 1"),
                        .seconds = 20,
                        .retries = 2};
  EXPECT_EQ(run_reward_program(program, {answered("a", "1")}), (std::vector<double>{1}));
  EXPECT_EQ(read_file(runs), "x\nx\nx\n");
  fs::remove(runs);
  program.retries = 1;
  const std::string message = message_of<RewardError>([&] { run_reward_program(program, {answered("a", "1")}); });
  EXPECT_NE(message.find("run 2 times (reward_retries = 1), reward_command = "), std::string::npos) << message;
  EXPECT_NE(message.find("it ended with code 5"), std::string::npos) << message;
}

TEST(RewardProgram, HasAMemoryLimit) {
  RewardProgram program{.command = "ulimit -v", .seconds = 60, .memory_mib = 512};
  EXPECT_EQ(run_reward_program(program, {answered("a", "1")}), (std::vector<double>{512 * 1024}));
  program.command = "awk 'BEGIN { x = \"a\"; while (1) x = x x }'";
  const std::string message = message_of<RewardError>([&] { run_reward_program(program, {answered("a", "1")}); });
  EXPECT_NE(message.find("its processes have reward_memory_limit = 512 MiB of address space each"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace witan

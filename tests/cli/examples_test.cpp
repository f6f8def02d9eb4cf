// Every command in examples of the help, README.md and docs/ runs.
//
// Commands are extracted from their sources, so a new example is tested at once. Each runs separately in a folder with
// the files that examples mention (my.txt, tokenizer.json, mine.toml …). `witan` in an example runs
// tests/cli/examples/witan.sh, which shrinks the command; mpirun is the installed one; tests/cli/examples/launcher.sh
// replaces srun and torchrun.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <map>
#include <regex>

#include "cli/cli_support.h"
#include "data/data_support.h"
#include "support/hub_server.h"
#include "support/program.h"
#include "witan/cli/command.h"
#include "witan/cli/help.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = WITAN_SOURCE_DIR;

// Commands with the places that show them, in the order of the first places, since a command may read output of an
// earlier one on its page.
class Examples {
 public:
  void add(const std::string& command, const std::string& place) {
    const auto [found, is_new] = index_.emplace(command, all_.size());
    if (is_new) all_.push_back({command, {}});
    all_[found->second].second.push_back(place);
  }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> all_;
  std::map<std::string, size_t> index_;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool is_command(const std::string& line) {
  static const std::regex command(R"(((build/[a-z]+/)?witan|(mpirun|srun|torchrun) .*witan) .*)");
  return std::regex_match(line, command);
}

// Joins lines that a backslash continues, like a shell.
class Commands {
 public:
  void add(const std::string& line) {
    const std::string code = continued_ + line.substr(std::min(line.find_first_not_of(' '), line.size()));
    continued_.clear();
    if (code.ends_with("\\"))
      continued_ = code.substr(0, code.size() - 1);
    else
      commands_.push_back(code);
  }
  const std::vector<std::string>& all() const { return commands_; }

 private:
  std::vector<std::string> commands_;
  std::string continued_;
};

// Commands in code blocks of a page: fenced, or indented by four spaces after an empty line.
std::vector<std::string> commands_of_page(const std::string& markdown) {
  Commands commands;
  bool fenced = false, indented = false, blank = true;
  for (const std::string& line : lines_of(markdown)) {
    const bool fence = line.find("```") == line.find_first_not_of(' ') && !line.empty();
    if (fence) fenced = !fenced;
    indented = !fenced && line.starts_with("    ") && (indented || blank);
    blank = line.empty() || line.starts_with("#");
    if (!fence && (fenced || indented)) commands.add(line);
  }
  std::vector<std::string> witans;
  std::ranges::copy_if(commands.all(), std::back_inserter(witans), is_command);
  return witans;
}

std::vector<std::string> commands_of_help(const std::string& help) {
  constexpr const char* kTitle = "\nexamples:\n";
  const size_t begin = help.find(kTitle);
  if (begin == std::string::npos) return {};
  Commands commands;
  for (const std::string& line : lines_of(help.substr(begin + std::strlen(kTitle)))) commands.add(line);
  return commands.all();
}

void add_help_examples(Examples& examples, const CLI::App& app, const std::vector<std::string>& path) {
  for (const std::string& name : cli::names_of_commands(app)) {
    std::vector<std::string> words = path;
    words.push_back(name);
    std::string title = "witan";
    for (const std::string& word : words) title += " " + word;
    std::vector<std::string> help = words;
    help.insert(help.begin(), "help");
    const auto commands = commands_of_help(witan(help).out);
    EXPECT_FALSE(commands.empty()) << title << " shows no example";
    for (const std::string& command : commands) {
      EXPECT_TRUE(is_command(command)) << title << " --help: " << command;
      examples.add(command, title + " --help");
    }
    add_help_examples(examples, *app.get_subcommand(name), words);
  }
}

std::vector<fs::path> pages() {
  std::vector<fs::path> pages = {kSource / "README.md", kSource / "CONTRIBUTING.md"};
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  return pages;
}

Examples all_examples() {
  Examples examples;
  cli::Context context;
  CLI::App app("", "witan");
  cli::add_all(app, context);
  cli::add_help(app, context);
  add_help_examples(examples, app, {});
  for (const fs::path& page : pages())
    for (const std::string& command : commands_of_page(read_text(page)))
      examples.add(command, fs::relative(page, kSource));
  return examples;
}

// Examples that may end with an exit code other than 0 here, and the reason.
struct Exception {
  const char* begins;
  int code;
  const char* why;
};
constexpr Exception kExceptions[] = {
    {"witan doctor --gpu", 10, "it says what is missing where there is no GPU that can be used"},
};

// Models of other programs, as the documentation names them, in both formats.
constexpr const char* kModelExample =
    "witan train --run model && witan export --run model --format hf model-folder && "
    "witan export --run model --format gguf model.gguf && rm -r runs && cp chat_template.jinja model-folder";
constexpr const char* kTokenizerExample = "witan tokenizer train my.txt --vocab-size 300 --output tokenizer.json";

constexpr const char* kChatTemplate = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}";

// A token file of modded-nanogpt: 256 numbers of 4 bytes, then tokens of 2 bytes.
std::string token_file(int32_t count) {
  std::string bytes(1024, '\0');
  const int32_t header[] = {20240520, 1, count};
  std::memcpy(bytes.data(), header, sizeof header);
  for (int32_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(i * i % 251);
    bytes += '\0';
  }
  return bytes;
}

// Small versions of the corpora that examples fetch.
void add_corpora(HubServer& hub) {
  HubRepository edu;
  edu.name = "HuggingFaceFW/fineweb-edu";
  edu.card = nlohmann::json::parse(
      R"({"configs": [{"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]}]})");
  for (const char* file : {"sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet"})
    edu.files[file] = random_bytes(5'000);
  hub.add(edu);
  HubRepository dclm;
  dclm.name = "mlfoundations/dclm-baseline-1.0";
  std::string rows;
  for (const std::string& line : lines_of(some_text(400)))
    if (!line.empty()) rows += R"({"text": ")" + line + "\"}\n";
  for (const char* file : {"global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst",
                           "global-shard_02_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst"})
    dclm.files[file] = zstd(rows);
  hub.add(dclm);
}

// Runs that later examples start from.
constexpr const char* kKept[] = {"started", "shuffled", "guesses"};

// The folder in which examples run, with the files that readers of the documentation have.
class Desk {
 public:
  Desk() {
    add_corpora(hub_);
    const fs::path bin = own_ / "bin";
    fs::create_directories(bin);
    for (const char* place : {"bin", "build/release", "build/cuda"}) {
      fs::create_directories(own_ / place);
      fs::create_symlink(kSource / "tests/cli/examples/witan.sh", own_ / place / "witan");
    }
    for (const char* launcher : {"srun", "torchrun"})
      fs::create_symlink(kSource / "tests/cli/examples/launcher.sh", bin / launcher);
    fs::create_directory_symlink(kSource / "recipes", own_ / "recipes");
    for (const char* file : {"my.txt", "other.txt", "books/one.txt", "more/one.txt", "corpus/one.txt", "corpus/two.md",
                             "corpus/drafts/three.txt"})
      write_text(own_ / file, some_text(400));
    write_text(own_ / "prompt.txt", "the king");
    write_text(own_ / "questions.txt", "the king?\n");
    write_text(own_ / "chat_template.jinja", kChatTemplate);
    std::string rows;
    for (const std::string& line : lines_of(some_text(400)))
      if (!line.empty()) rows += R"({"text": ")" + line + R"(", "content": ")" + line + "\"}\n";
    write_text(own_ / "rows.jsonl.zst", zstd(rows));
    write_text(own_ / "rows.jsonl.gz", gzip(rows));
    std::string chats;
    for (int i = 0; i < 60; ++i)
      chats += R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})"
               "\n";
    for (const char* file : {"messages.jsonl", "math.jsonl", "code.jsonl"}) write_text(own_ / file, chats);
    std::string problems;
    for (int i = 0; i < 60; ++i)
      problems += cat(R"({"messages": [{"role": "user", "content": "1 + )", i,
                      R"("}, {"role": "assistant", "content": ")", i + 1, "\"}]}\n");
    for (const char* file : {"problems.jsonl", "shuffled.jsonl", "sorted.jsonl"}) write_text(own_ / file, problems);
    fs::create_directory_symlink(kSource / "examples", own_ / "examples");
    std::string pairs;
    for (int i = 0; i < 60; ++i)
      pairs += R"({"prompt": "hi", "chosen": " ho", "rejected": " no"})"
               "\n";
    write_text(own_ / "pairs.jsonl", pairs);
    write_text(own_ / "texts.jsonl", "\"the king\"\n\"of the council\\n\"\n");
    write_text(own_ / "chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    fs::copy(kSource / "tests/golden/tasks/tasks", own_ / "tasks", fs::copy_options::recursive);
    write_text(own_ / "mine.toml", "num_layers = 2\nhidden_size = 128\n");
    write_text(own_ / "fineweb_train_000001.bin", token_file(20000));
    fs::create_directories(own_ / "gpt2");
    fs::create_symlink("../tokenizer.json", own_ / "gpt2/tokenizer.json");
  }

  // Creates tokenizers, token shards and runs that examples read.
  void prepare() {
    for (const char* command :
         {kTokenizerExample, kModelExample, "witan data my.txt --output data/my --vocab-size 300",
          "witan data prepare --input rows.jsonl.zst --output-prefix data/rows --tokenizer tokenizer.json",
          "witan train"})
      EXPECT_EQ(run(command), "");
    fs::rename(own_ / "runs", own_ / "prepared");
    HubRepository model;
    model.kind = "model";
    model.name = "Qwen/Qwen3-0.6B";
    for (const auto& entry : fs::directory_iterator(own_ / "model-folder"))
      if (entry.is_regular_file()) model.files[entry.path().filename()] = read_text(entry.path());
    hub_.add(model);
    for (const char* fetched : {"--preset fineweb-edu-10bt", "--preset dclm-baseline", "--model Qwen/Qwen3-0.6B"})
      EXPECT_EQ(run(cat("witan data fetch ", fetched)), "");
    EXPECT_EQ(run("witan train --run adapted --lora-rank 4"), "");
    fs::rename(own_ / "runs/adapted", own_ / "prepared/adapted");
    EXPECT_EQ(run("witan train --run preferred --init-from model-folder --sft --preferences --objective preference "
                  "--data pairs.jsonl"),
              "");
    fs::rename(own_ / "runs/preferred", own_ / "prepared/preferred");
    for (const char* name : {"mine", "my-run", "base", "tuned", "old", "solved"})
      fs::copy(own_ / "prepared/default", own_ / "prepared" / name, fs::copy_options::recursive);
    write_text(own_ / "prepared/tuned/hf/chat_template.jinja", kChatTemplate);
  }

  // Keeps runs of docs/rl.md's commands for those that start from them.
  void keep(const std::string& name) { fs::rename(own_ / "runs" / name, own_ / name); }

  // The problem with the example, or nothing.
  std::string run(const std::string& command) {
    constexpr double kSeconds = 600;  // a hang takes longer; planning takes minutes under a sanitizer on a busy core
    // Commands that start or plan a run find none; others read an existing one.
    static const std::regex begins(R"(.*witan (train|run|plan|bench|import) .*)");
    fs::remove_all(own_ / "runs");
    if (!std::regex_match(command + " ", begins)) {
      fs::create_directory_symlink(own_ / "prepared", own_ / "runs");
    }
    for (const std::string name : kKept)
      if (command.find("--init-from " + name) != std::string::npos) {
        fs::create_directory(own_ / "runs");
        fs::copy(own_ / name, own_ / "runs" / name, fs::copy_options::recursive);
      }
    const fs::path log = own_ / "log";
    Program shell({"/bin/bash", "-c", set_up() + command}, log);
    if (!shell.ends_within(kSeconds)) return cat("takes more than ", kSeconds, " s:\n", read_text(log));
    const int code = shell.wait();
    for (const Exception& exception : kExceptions)
      if (command.starts_with(exception.begins) && code == exception.code) {
        std::printf("%s ends with exit code %d: %s\n", command.c_str(), code, exception.why);
        return "";
      }
    return code == 0 ? "" : cat("ends with exit code ", code, ":\n", read_text(log));
  }

 private:
  // By default Open MPI refuses to run as root or to start more processes than cores.
  std::string set_up() const {
    const std::string here = own_.path().string();
    return "set -o pipefail; cd '" + here + "'; export PATH='" + here + "/bin':\"$PATH\" XDG_CACHE_HOME='" + here +
           "/cache' WITAN_PROGRAM='" WITAN_PROGRAM "' HF_ENDPOINT=" + hub_.endpoint() +
           " no_proxy=127.0.0.1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
           "OMPI_MCA_rmaps_base_oversubscribe=1; ";
  }

  TempFolder own_;
  HubServer hub_;  // serves `witan data fetch`
};

// Four groups, one for each of three commands and one for the rest, which run concurrently.
class ExamplesTest : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string group_of(const std::string& command) {
    for (const char* group : {"train", "plan", "bench"})
      if ((command + " ").find(std::string("witan ") + group + " ") != std::string::npos) return group;
    return "others";
  }
};

TEST_P(ExamplesTest, Run) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "some sixty whole commands: takes minutes under a sanitizer and covers nothing new";
#endif
  Desk desk;
  if (GetParam() == "others") desk.prepare();
  if (GetParam() == "train") {
    EXPECT_EQ(desk.run(kTokenizerExample), "");
    EXPECT_EQ(desk.run(kModelExample), "");
    EXPECT_EQ(desk.run("cp tokenizer.json digits.json && cp tokenizer.json bytes.json && "
                       "awk -v guesses=1 -f examples/tools/calls.awk > guesses.jsonl; awk -f examples/tools/calls.awk "
                       "> sums.jsonl"),
              "");
    for (const char* prefix : {"data/web", "data/rows"})
      EXPECT_EQ(desk.run(cat("witan data prepare --input rows.jsonl.zst --output-prefix ", prefix,
                             " --tokenizer tokenizer.json")),
                "");
  }
  int ran = 0;
  for (const auto& [command, places] : all_examples()) {
    if (group_of(command) != GetParam()) continue;
    ++ran;
    const std::string wrong = desk.run(command);
    for (const std::string name : kKept)
      if (command.starts_with("witan train --run " + name + " ")) desk.keep(name);
    EXPECT_EQ(wrong, "") << command << "\nof " << places.front();
  }
  EXPECT_GE(ran, 5) << "examples were not found";
  std::printf("%d examples\n", ran);
}

INSTANTIATE_TEST_SUITE_P(Commands, ExamplesTest, ::testing::Values("train", "plan", "bench", "others"),
                         [](const auto& group) { return group.param; });

// Tests of this test's parts.
TEST(ExamplesOfPages, AreFoundInCodeBlocks) {
  const std::string page =
      "    witan train --first\n\nText `witan train --inline`, or\n    witan train --wrapped\n\n    $ ls\n"
      "    build/release/witan train --indented   # why\n\n"
      "```text\nwitan      is no command\nwitan plan --fenced \\\n  --continued\n```\nwitan train --prose\n\n"
      "    mpirun -n 2 witan train\n    mpirun -n 2 other\n    witan/cli is a folder\n";
  EXPECT_EQ(commands_of_page(page),
            (std::vector<std::string>{"witan train --first", "build/release/witan train --indented   # why",
                                      "witan      is no command", "witan plan --fenced --continued",
                                      "mpirun -n 2 witan train"}));
}

TEST(ExamplesOfPages, FailuresAreDetected) {
  Desk desk;
  EXPECT_EQ(desk.run("witan plan --num-layers 2 | head -n 1"), "");
  for (const char* bad :
       {"witan train --no-such-flag", "witan train --ranks 3 --mesh replicate=2", "witan plan @nowhere.args",
        "srun --ntasks 3 witan train", "witan tokenizer encode < nowhere.txt | witan tokenizer decode",
        "mpirun -n 3 witan train", "torchrun --no-python --nproc-per-node 3 witan train"})
    EXPECT_NE(desk.run(bad), "") << bad;
}

}  // namespace
}  // namespace witan::test

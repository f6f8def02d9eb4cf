// Commands that generate more than the answer to one prompt: generate with several prompts, chat, serve.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "serve/http_client.h"
#include "support/program.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A minimal chat template: a line for each message and the beginning of the answer.
constexpr const char* kMessages = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}";
constexpr const char* kTemplate =
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

// The program on a free port until it is stopped.
class Server {
 public:
  Server(const fs::path& runs, const fs::path& log, std::vector<std::string> more = {},
         std::vector<std::string> variables = {})
      : log_(log), program_(words(runs, std::move(more)), log, std::move(variables)) {
    const std::string before = "listening at http://";
    const bool listens = program_.reaches([&] { return said().find(" (Ctrl-C stops)") != std::string::npos; }, 60);
    EXPECT_TRUE(listens) << said();
    if (listens) port_ = std::stoi(said().substr(said().find(':', said().find(before) + before.size()) + 1));
  }
  int port() const { return port_; }
  std::string said() const { return read_text(log_); }
  int stop(int signal) {
    program_.send(signal);
    EXPECT_TRUE(program_.ends_within(60)) << said();
    return program_.wait();
  }

 private:
  static std::vector<std::string> words(const fs::path& runs, std::vector<std::string> more) {
    std::vector<std::string> all = {WITAN_PROGRAM, "serve", "--runs-folder", runs, "--port", "0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  fs::path log_;
  Program program_;
  int port_ = 0;
};

class GenerationCommands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write_text(*folder_ / "text.txt", some_text(400));
    const Said trained = run({"train",
                              "--data",
                              *folder_ / "text.txt",
                              "--run",
                              "small",
                              "--tokenizer-vocab-size",
                              "300",
                              "--train-iters",
                              "4",
                              "--seq-length",
                              "64",
                              "--hidden-size",
                              "32",
                              "--num-layers",
                              "2",
                              "--ffn-hidden-size",
                              "32",
                              "--num-experts",
                              "4",
                              "--sample-tokens",
                              "0"});
    ASSERT_EQ(trained.code, 0) << trained.err;
    write_text(*folder_ / "template.jinja", kTemplate);
  }
  static void TearDownTestSuite() { delete folder_; }

  static Said run(std::vector<std::string> args, const std::string& input = "") {
    args.insert(args.end(), {"--runs-folder", *folder_ / "runs"});
    return witan(args, input);
  }
  static std::string said(std::vector<std::string> args, const std::string& input = "") {
    const Said said = run(std::move(args), input);
    EXPECT_EQ(said.code, 0) << said.err;
    return said.out;
  }
  static std::vector<json> objects(const std::string& text) {
    std::vector<json> all;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
    return all;
  }
  static std::string chat(const std::string& input, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"chat", "--chat-template", *folder_ / "template.jinja", "--max-tokens", "6"});
    return said(std::move(more), input);
  }

  static TempFolder* folder_;
  TempFolder own_;
};
TempFolder* GenerationCommands::folder_ = nullptr;

TEST_F(GenerationCommands, CachesMayBeInFp8) {
  const std::vector<std::string> command = {"generate",  "the king and his ships", "--max-tokens", "8", "--json",
                                            "--logprobs"};
  const auto logprobs = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = command;
    args.insert(args.end(), more.begin(), more.end());
    return objects(said(args)).at(0)["logprobs"];
  };
  const json exact = logprobs({});
  EXPECT_EQ(logprobs({"--kv-cache-dtype", "auto"}), exact);
  const json rounded = logprobs({"--kv-cache-dtype", "fp8_e4m3"});
  EXPECT_EQ(rounded[0], exact[0]) << "a prompt is read as it was computed";
  EXPECT_NE(rounded, exact);
  EXPECT_THAT(chat("hello\n", {"--kv-cache-dtype", "fp8_e4m3"}), Not(HasSubstr("error")));
  for (const std::vector<std::string>& refused :
       {std::vector<std::string>{"--kv-cache-dtype", "fp8_e4m3"}, {"--cache-mla-latents", "true"}}) {
    std::vector<std::string> args = command;
    args.insert(args.end(), refused.begin(), refused.end());
    args.push_back("--deterministic");
    const Said answer = run(args);
    EXPECT_EQ(answer.code, 3) << answer.err;
    EXPECT_THAT(answer.err, HasSubstr(refused[0] == "--kv-cache-dtype" ? "keep equal to the training forward's"
                                                                       : "no multi-head latent attention"));
  }
}

TEST_F(GenerationCommands, SeveralPromptsGiveTheSameTextsAsSeparateOnes) {
  const std::string one = said({"generate", "the king", "--max-tokens", "8"});
  const std::string two = said({"generate", "ships and", "--max-tokens", "8"});
  EXPECT_EQ(said({"generate", "the king", "ships and", "--max-tokens", "8"}), one + two);
  write_text(own_ / "prompts.txt", "the king\n\nships and\r\n");
  EXPECT_EQ(said({"generate", "--prompts", own_ / "prompts.txt", "--max-tokens", "8"}), one + two);
  write_text(own_ / "prompts.jsonl", "{\"prompt\": \"the king\", \"id\": 7}\n\"ships and\"\n");
  EXPECT_EQ(said({"generate", "--prompts", own_ / "prompts.jsonl", "--max-tokens", "8"}), one + two);
  EXPECT_EQ(said({"generate", "the king", "-", "--max-tokens", "8"}, "ships and"), one + two);
}

// Checkpoints contain copies of the configuration.
TEST_F(GenerationCommands, ARunWithoutItsConfigurationIsStillUsable) {
  const fs::path runs = *folder_ / "runs", lost = runs / "lost", empty = runs / "empty", bare = runs / "bare";
  for (const fs::path& copy : {lost, empty, bare}) fs::copy(runs / "small", copy, fs::copy_options::recursive);
  fs::remove(lost / "config.toml");
  for (const fs::path& copy : {empty, bare}) write_text(copy / "config.toml", "");
  fs::remove_all(bare / "checkpoints");
  const Said listed = run({"runs", "--json"});
  std::map<std::string, json> by_name;
  for (const json& one : json::parse(listed.out)) by_name[one["name"]] = one;
  for (const char* name : {"lost", "empty"}) {
    for (const char* key : {"state", "step", "total_steps", "loss"})
      EXPECT_EQ(by_name[name][key], by_name["small"][key]) << name << key;
    EXPECT_EQ(said({"generate", "the", "--run", name, "--max-tokens", "8"}),
              said({"generate", "the", "--run", "small", "--max-tokens", "8"}));
  }
  EXPECT_THAT(listed.err, HasSubstr("config.toml is lost or empty, and no checkpoint has another"));
  EXPECT_THAT(listed.err, HasSubstr("bare: "));
  write_text(empty / "config.toml", "garbage = = 3\n");
  const Said damaged = run({"train", "--run", "empty", "--dry-run"});
  EXPECT_EQ(damaged.code, 3);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("not valid TOML"), HasSubstr("step-4/config.toml: copy it over ")));
  for (const fs::path& copy : {lost, empty, bare}) fs::remove_all(copy);
}

TEST_F(GenerationCommands, NamesInvalidPrompts) {
  write_text(own_ / "prompts.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n");
  Said said = run({"generate", "--prompts", own_ / "prompts.jsonl"});
  EXPECT_EQ(said.code, 4);
  EXPECT_THAT(said.err, HasSubstr("prompts.jsonl:2: a string or an object with a string \"prompt\""));
  write_text(own_ / "empty.txt", "\n\n");
  EXPECT_THAT(run({"generate", "--prompts", own_ / "empty.txt"}).err, HasSubstr("has no prompts"));
  EXPECT_EQ(run({"generate", "--prompts", own_ / "none.txt"}).code, 4);
  said = run({"generate", "a", "b", "--record-routes", own_ / "routes"});
  EXPECT_EQ(said.code, 2);
  EXPECT_THAT(said.err, HasSubstr("--record-routes takes one prompt, not 2"));
}

TEST_F(GenerationCommands, JsonHasTheGeneratedTexts) {
  const auto all =
      objects(said({"generate", "the king", "ships", "--max-tokens", "5", "--greedy", "--json", "--logprobs", "2"}));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["prompt"], "ships");
  EXPECT_EQ(all[0]["tokens"].size(), 5u);
  EXPECT_EQ(all[0]["finish_reason"], "length");
  EXPECT_EQ("the king" + all[0]["text"].get<std::string>() + "\n",
            said({"generate", "the king", "--max-tokens", "5", "--greedy"}));
  for (size_t i = 0; i < 5; ++i) {
    const json& top = all[0]["top_logprobs"][i];
    ASSERT_EQ(top.size(), 2u);
    EXPECT_EQ(top[0][0], all[0]["tokens"][i]) << "greedy decoding takes the most likely token";
    EXPECT_EQ(top[0][1], all[0]["logprobs"][i]);
    EXPECT_LE(top[1][1].get<double>(), top[0][1].get<double>());
    EXPECT_LT(top[0][1].get<double>(), 0);
  }
  EXPECT_FALSE(objects(said({"generate", "a", "--max-tokens", "2", "--json"}))[0].contains("logprobs"));
}

TEST_F(GenerationCommands, LogprobsPrintATable) {
  const std::string text = said({"generate", "the king", "--max-tokens", "3", "--greedy"});
  const std::string table = said({"generate", "the king", "--max-tokens", "3", "--greedy", "--logprobs"});
  EXPECT_TRUE(table.starts_with(text)) << table;
  EXPECT_EQ(std::ranges::count(table, '\n') - std::ranges::count(text, '\n'), 3) << table;
}

// The number may be given, left out before the prompt, or follow it.
TEST_F(GenerationCommands, APromptMayFollowLogprobs) {
  const std::vector<std::string> more = {"--max-tokens", "3", "--greedy"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "generate");
    words.insert(words.end(), more.begin(), more.end());
    return said(words);
  };
  const std::string table = with({"the king", "--logprobs", "0"});
  EXPECT_EQ(with({"--logprobs", "the king"}), table);
  EXPECT_EQ(with({"--logprobs", "0", "the king"}), table);
  EXPECT_EQ(with({"the king", "--logprobs"}), table);
  EXPECT_EQ(with({"--logprobs=0", "the king"}), table);
  EXPECT_EQ(said({"generate", "--max-tokens", "3", "--greedy", "--logprobs", "-"}, "the king"), table);
  EXPECT_NE(with({"--logprobs", "2", "the king"}), table);
  EXPECT_EQ(run({"generate", "--logprobs", "5000", "the king"}).code, 2)
      << "a number that is too large is not a prompt";
}

TEST_F(GenerationCommands, StopStringsAreNotPrinted) {
  const auto whole = objects(said({"generate", "the king", "--max-tokens", "30", "--greedy", "--json"}))[0];
  const std::string text = whole["text"];
  const std::string stop = text.substr(7, 3);  // across token boundaries
  const auto cut = objects(
      said({"generate", "the king", "--max-tokens", "30", "--greedy", "--json", "--stop", "~", "--stop", stop}))[0];
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_LT(cut["tokens"].size(), whole["tokens"].size());
  EXPECT_EQ(said({"generate", "the king", "--max-tokens", "30", "--greedy", "--stop", stop}),
            "the king" + cut["text"].get<std::string>() + "\n");
}

TEST_F(GenerationCommands, ARepetitionPenaltyPreventsRepetition) {
  const auto distinct = [](const json& tokens) { return std::set<int>(tokens.begin(), tokens.end()).size(); };
  const auto plain = objects(said({"generate", "the", "--max-tokens", "20", "--greedy", "--json"}))[0]["tokens"];
  const auto penalised = objects(said(
      {"generate", "the", "--max-tokens", "20", "--greedy", "--json", "--repetition-penalty", "100000"}))[0]["tokens"];
  EXPECT_LT(distinct(plain), 20u) << "such a small model repeats itself";
  EXPECT_GT(distinct(penalised), distinct(plain));
  expect_refusal({"generate", "x", "--repetition-penalty", "0", "--runs-folder", *folder_ / "runs"}, 3,
                 {"repetition_penalty"});
}

TEST_F(GenerationCommands, PenaltiesOfGeneratedTokensPreventRepetition) {
  for (const char* penalty : {"--presence-penalty", "--frequency-penalty"}) {
    const auto tokens =
        objects(said({"generate", "the", "--max-tokens", "20", "--greedy", "--json", penalty, "1000"}))[0]["tokens"];
    EXPECT_EQ(std::set<int>(tokens.begin(), tokens.end()).size(), tokens.size()) << penalty;
  }
  expect_refusal({"generate", "x", "--presence-penalty", "nan", "--runs-folder", *folder_ / "runs"}, 3,
                 {"presence_penalty"});
}

// The small run was trained on samples of 64 tokens.
TEST_F(GenerationCommands, WarnsOfTextsLongerThanTheSamples) {
  const Said chat =
      run({"chat", "--chat-template", *folder_ / "template.jinja", "--context", "100", "--max-tokens", "2"}, "ships\n");
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_THAT(chat.err, HasSubstr("warning: texts may reach 100 tokens, but the model was trained on 64 (seq_length)"));
  Server server(*folder_ / "runs", own_ / "log", {"--context", "65"});
  EXPECT_THAT(server.said(), HasSubstr("warning: texts may reach 65 tokens, but the model was trained on 64"));
  server.stop(SIGTERM);
}

TEST_F(GenerationCommands, UsesTheModelsSettingsByDefault) {
  fs::copy(*folder_ / "runs", own_ / "runs", fs::copy_options::recursive);
  write_text(own_ / "runs/small/hf/generation_config.json", R"({"do_sample": false, "max_new_tokens": 7})");
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "the king", "--json", "--runs-folder", own_ / "runs"});
    return objects(witan(more).out).at(0)["tokens"];
  };
  const auto greedy = objects(said({"generate", "the king", "--json", "--greedy", "--max-tokens", "7"}))[0]["tokens"];
  EXPECT_EQ(generate({}), greedy);
  EXPECT_EQ(generate({"--max-tokens", "3"}).size(), 3u);
  EXPECT_EQ(generate({"--temperature", "0.7"}),
            objects(said({"generate", "the king", "--json", "--max-tokens", "7"}))[0]["tokens"]);
  write_text(own_ / "runs/small/hf/generation_config.json",
             json{{"do_sample", false}, {"eos_token_id", greedy[2]}}.dump());
  EXPECT_LT(generate({}).size(), 4u) << "the model's end of text";
}

TEST_F(GenerationCommands, ReportsIneffectiveAndInvalidSettings) {
  fs::copy(*folder_ / "runs", own_ / "runs", fs::copy_options::recursive);
  write_text(own_ / "runs/small/hf/generation_config.json", R"({"min_p": 1, "no_repeat_ngram_size": 2})");
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "the king", "--max-tokens", "7", "--runs-folder", own_ / "runs"});
    return witan(more);
  };
  const Said theirs = generate({});
  EXPECT_THAT(theirs.err, HasSubstr("no_repeat_ngram_size = 2 has no effect"));
  EXPECT_THAT(theirs.err, Not(HasSubstr("min_p")));
  const std::string greedy = said({"generate", "the king", "--max-tokens", "7", "--greedy"});
  EXPECT_EQ(theirs.out, greedy) << "min_p = 1 leaves only the most likely token";
  EXPECT_NE(generate({"--min-p", "0"}).out, greedy);
  const Said empty = generate({"--stop", ""});
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("--stop: the text is empty"));
}

TEST_F(GenerationCommands, ChatAnswersLineByLine) {
  const std::string first = chat("the king\n");
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(chat("the king\n\n   \n"), first) << "empty lines are skipped";
  EXPECT_EQ(chat("the king\n/quit\nships\n"), first);
  EXPECT_EQ(chat("the king\n/reset\nthe king\n"), first + first);
  EXPECT_NE(chat("the king\nthe king\n"), first + first) << "the second answer depends on the first";
  // It equals the template's rendering of the conversation.
  EXPECT_EQ(said({"generate", "user: the king\nassistant:", "--max-tokens", "6"}),
            "user: the king\nassistant:" + first);
}

// Each answer depends on the whole conversation, whatever was cached from the previous one.
TEST_F(GenerationCommands, ChatAnswersLikeANewConversation) {
  const std::string file = own_ / "chat.jsonl";
  std::string questions;
  for (const char* question : {"the king", "and ships", "of corn", "the", "his"})
    questions += std::string(question) + "\n/save " + file + "\n";
  const std::string answers = said(
      {"chat", "--chat-template", *folder_ / "template.jinja", "--max-tokens", "6", "--context", "400"}, questions);
  const json messages = json::parse(read_text(file))["messages"];
  ASSERT_EQ(messages.size(), 10u);
  std::string prompt, expected;
  for (size_t i = 0; i < messages.size(); i += 2) {
    prompt += "user: " + messages[i]["content"].get<std::string>() + "\nassistant:";
    const std::string text = said({"generate", prompt, "--max-tokens", "6"});
    expected += text.substr(prompt.size());
    prompt += " " + messages[i + 1]["content"].get<std::string>() + "\n";
  }
  EXPECT_EQ(answers, expected);
}

TEST_F(GenerationCommands, ChatsHaveInstructionsAndCanBeSaved) {
  const std::string plain = chat("ships\n"), system = chat("ships\n", {"--system", "of corn and ships"});
  EXPECT_NE(plain, system);
  EXPECT_EQ(chat("/system of corn and ships\nships\n"), system);
  EXPECT_EQ(chat("ships\n/system\nships\n", {"--system", "of corn and ships"}), system + plain);
  const std::string file = own_ / "chat.jsonl";
  chat("ships\n/save " + file + "\n", {"--system", "of corn and ships"});
  const json saved = json::parse(read_text(file));
  ASSERT_EQ(saved["messages"].size(), 3u);
  EXPECT_EQ(saved["messages"][0], (json{{"role", "system"}, {"content", "of corn and ships"}}));
  EXPECT_EQ(saved["messages"][2]["role"], "assistant");
  EXPECT_EQ(saved["messages"][2]["content"].get<std::string>() + "\n", system);
}

// Each save of a conversation replaces the previous one and nothing else.
TEST_F(GenerationCommands, ChatOverwritesOnlyItsOwnConversation) {
  const std::string file = own_ / "chat.jsonl", notes = own_ / "notes.jsonl", save = "/save " + file + "\n";
  write_text(notes, R"({"messages":[{"role":"user","content":"mine"}]})"
                    "\n");
  const std::vector<std::string> args = {"chat", "--chat-template", *folder_ / "template.jinja", "--max-tokens", "2"};
  Said out = run(args, "ships\n" + save + "corn\n" + save + "/save " + notes + "\n/reset\n" + save);
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_EQ(json::parse(read_text(file))["messages"].size(), 4u);
  EXPECT_THAT(read_text(notes), HasSubstr("mine"));
  for (const std::string& refused : {notes, file})
    EXPECT_THAT(out.err, HasSubstr("/save " + refused + " is there already and is no beginning of this conversation"));
}

TEST_F(GenerationCommands, ChatReportsErrors) {
  Said out = run({"chat"}, "hello\n");
  EXPECT_EQ(out.code, 2);
  EXPECT_THAT(out.err, AllOf(HasSubstr("the run small has no chat template: it was neither imported"),
                             HasSubstr("--chat-template FILE")));
  const std::vector<std::string> args = {"chat", "--chat-template", *folder_ / "template.jinja"};
  out = run(args, "/what\n/save\n/save /no/such/folder/file\n");
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_THAT(out.err, AllOf(HasSubstr("there is no command /what"), HasSubstr("/reset"),
                             HasSubstr("/save needs the name of a file"), HasSubstr("/no/such/folder")));
  write_text(own_ / "silent.jinja", "{# nothing #}");
  out = run({"chat", "--chat-template", own_ / "silent.jinja"}, "hello\n");
  EXPECT_EQ(out.code, 4);
  EXPECT_THAT(out.err, HasSubstr("silent.jinja: the template writes nothing for this conversation"));
  std::string longer;
  for (int i = 0; i < 200; ++i) longer += "the king ";
  out = run(args, longer + "\nships\n");
  EXPECT_EQ(out.code, 4) << out.err;  // for scripts: a question was not answered
  EXPECT_THAT(out.err, HasSubstr("there is room for 64: /reset"));
  EXPECT_FALSE(out.out.empty()) << "and continues";
}

TEST_F(GenerationCommands, ServeAnswersLikeGenerate) {
  Server server(*folder_ / "runs", own_ / "log",
                {"--chat-template", *folder_ / "template.jinja", "--name", "mine", "--max-batch", "3"});
  HttpClient client(server.port());
  EXPECT_EQ(client.get("/v1/models").json()["data"][0]["id"], "mine");
  json answer = client
                    .post("/v1/completions", R"({"model": "mine", "prompt": ["the king", "ships and", "corn", "his"],
                                                 "max_tokens": 8, "temperature": 0})")
                    .json();
  EXPECT_EQ("the king" + answer["choices"][0]["text"].get<std::string>() + "\n",
            said({"generate", "the king", "--max-tokens", "8", "--greedy"}));
  EXPECT_EQ("his" + answer["choices"][3]["text"].get<std::string>() + "\n",
            said({"generate", "his", "--max-tokens", "8", "--greedy"}));
  answer = client
               .post("/v1/chat/completions",
                     R"({"messages": [{"role": "user", "content": "the king"}], "max_tokens": 6, "temperature": 0.7,
                         "seed": 0})")
               .json();
  EXPECT_EQ(answer["choices"][0]["message"]["content"].get<std::string>() + "\n", chat("the king\n"));
  EXPECT_EQ(server.stop(SIGTERM), 0) << server.said();
  EXPECT_THAT(server.said(), ::testing::EndsWith("stopped\n"));
}

// Log probabilities of a text are the same whether it was generated or given.
TEST_F(GenerationCommands, ServeScoresItsOwnText) {
  Server server(*folder_ / "runs", own_ / "log");
  HttpClient client(server.port());
  const json made = client
                        .post("/v1/completions", R"({"prompt": "the king", "max_tokens": 6, "temperature": 0,
                                                     "logprobs": 1, "echo": true})")
                        .json()["choices"][0];
  const json given =
      client
          .post("/v1/completions",
                json{{"prompt", made["text"]}, {"max_tokens", 0}, {"logprobs", 1}, {"echo", true}}.dump())
          .json()["choices"][0];
  // This requires that the text is tokenized the same way.
  if (made["logprobs"]["tokens"] == given["logprobs"]["tokens"]) {
    EXPECT_EQ(made["logprobs"], given["logprobs"]);
  }
  EXPECT_EQ(made["text"], given["text"]);
  EXPECT_EQ(server.stop(SIGINT), 0) << server.said();
}

// Fields of OpenAI's API besides the prompt, with a template that supports tools.
TEST_F(GenerationCommands, ServeSupportsToolsPenaltiesAndBestOf) {
  write_text(own_ / "tools.jinja",
             "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + std::string(kMessages) +
                 "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n"
                 "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  Server server(*folder_ / "runs", own_ / "log", {"--chat-template", own_ / "tools.jinja", "--context", "600"});
  HttpClient client(server.port());
  const std::string question = R"({"max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": "a"}])";
  const json plain = client.post("/v1/chat/completions", question + "}").json();
  const json again = client.post("/v1/chat/completions", question + "}").json();
  EXPECT_EQ(again["choices"], plain["choices"]);
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0) << "the prompt was cached";
  const json tools = client
                         .post("/v1/chat/completions", question + R"(, "tools": [{"type": "function",
                               "function": {"name": "look"}}]})")
                         .json();
  EXPECT_GT(tools["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]) << "the model is shown the tool";
  EXPECT_EQ(tools["choices"][0]["finish_reason"], "length") << "and does not call it";
  const auto complete = [&](const std::string& members) {
    return client.post("/v1/completions", R"({"prompt": "the", "max_tokens": 8, "logprobs": 0, )" + members + "}")
        .json()["choices"];
  };
  const json biased = complete(R"("temperature": 0, "logit_bias": {"66": 100})")[0]["logprobs"]["tokens"];
  for (const json& token : biased) EXPECT_EQ(token, biased[0]);
  const auto mean = [](const json& choice) {
    const json& logprobs = choice["logprobs"]["token_logprobs"];
    double sum = 0;
    for (const json& logprob : logprobs) sum += logprob.get<double>();
    return sum / static_cast<double>(std::max<size_t>(1, logprobs.size()));
  };
  double best = -1e9;
  for (const json& choice : complete(R"("n": 4, "seed": 5)")) best = std::max(best, mean(choice));
  EXPECT_EQ(mean(complete(R"("best_of": 4, "seed": 5)")[0]), best);
  EXPECT_EQ(server.stop(SIGTERM), 0) << server.said();
}

TEST_F(GenerationCommands, ServeListensToOtherHostsOnlyWithAKey) {
  expect_refusal({"serve", "--host", "0.0.0.0", "--runs-folder", *folder_ / "runs"}, 2, {"WITAN_API_KEY", "secret"});
  expect_refusal({"serve", "--host", "not a host", "--runs-folder", *folder_ / "runs"}, 2, {"no such host"});
  Server server(*folder_ / "runs", own_ / "log", {"--host", "0.0.0.0"}, {"WITAN_API_KEY=secret"});
  HttpClient client(server.port());
  EXPECT_EQ(client.get("/v1/models").status, 401);
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(server.stop(SIGTERM), 0);
}

TEST_F(GenerationCommands, ServeLimitsConcurrentTextsToThePlan) {
  const std::vector<std::string> serve = {"serve", "--host", "not a host", "--runs-folder", *folder_ / "runs"};
  const auto with = [&](const std::string& batch) {
    std::vector<std::string> args = serve;
    args.insert(args.end(), {"--max-batch", batch});
    return args;
  };
  expect_refusal(with("4097"), 2, {"--max-batch", "4096"});
  expect_refusal(with("4096"), 2, {"no such host"});
}

// The request takes minutes, and the server has no time left.
TEST_F(GenerationCommands, ServeCancelsRequestsLongerThanTheTimeToStop) {
  Server server(*folder_ / "runs", own_ / "log", {"--context", "4000", "--stop-timeout", "0"});
  HttpClient client(server.port());
  client.send(HttpClient::post_text(
      "/v1/completions", R"({"prompt": "the", "max_tokens": 3900, "n": 128, "temperature": 0, "stream": true})"));
  ASSERT_TRUE(client.receive_until("data: "));
  EXPECT_EQ(server.stop(SIGTERM), 0) << server.said();
  EXPECT_THAT(server.said(), AllOf(HasSubstr("for at most 0"), ::testing::EndsWith("stopped; cancelled 1 request\n")));
}

TEST_F(GenerationCommands, ServeFinishesRunningRequestsBeforeItStops) {
  Server server(*folder_ / "runs", own_ / "log", {"--context", "4000"});
  HttpClient client(server.port());
  client.send(HttpClient::post_text("/v1/completions",
                                    R"({"prompt": "the", "max_tokens": 300, "temperature": 0, "stream": true})"));
  ASSERT_TRUE(client.receive_until("data: "));
  EXPECT_EQ(server.stop(SIGTERM), 0) << server.said();
  EXPECT_TRUE(client.receive_until("[DONE]"));
}

}  // namespace
}  // namespace witan::test

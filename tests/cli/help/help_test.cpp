// Short and full help, colours on terminals, and output derived from the list of commands: completions, manual pages.
#include "witan/cli/help.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <regex>

#include "cli/cli_support.h"
#include "support/program.h"
#include "witan/cli/command.h"
#include "witan/cli/help/described_commands.h"
#include "witan/train/config/config.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

cli::DescribedCommand all_commands() {
  cli::Context context;
  CLI::App app("Witan", "witan");
  cli::add_all(app, context);
  cli::add_help(app, context);
  return cli::describe(app);
}

// A help page with each option on a single line.
size_t options_in(const std::string& help) {
  size_t options = 0;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) options += line.starts_with("  -");
  return options;
}

TEST(HelpTest, IsShortUnlessAllIsRequested) {
  const std::string brief = witan({"train", "--help"}).out, all = witan({"train", "--help-all"}).out;
  RunConfig config;
  EXPECT_GT(options_in(all), config.fields().size());
  EXPECT_LT(options_in(brief), 70u);
  for (const char* flag :
       {"\n  --num-layers ", "\n  --lr ", "\n  --mesh ", "\n  --data ", "\n  --preset ", "\n  --fresh "})
    EXPECT_TRUE(contains(brief, flag)) << flag;
  EXPECT_FALSE(contains(brief, "--adam-beta2 "));
  EXPECT_TRUE(contains(all, "\n  --adam-beta2 "));
  const std::string more = std::to_string(options_in(all) - options_in(brief)) +
                           " more flags, of all keys of the configuration: `witan train --help-all`";
  EXPECT_TRUE(contains(brief, more)) << more;
  EXPECT_FALSE(contains(all, "--help-all"));
  EXPECT_EQ(witan({"help", "train", "--all"}).out, all);
  EXPECT_EQ(witan({"help", "train"}).out, brief);
}

// Compares words, since lines are wrapped.
std::string words_of(const std::string& help) {
  return std::regex_replace(help, std::regex("\\s+"), " ");
}

TEST(HelpTest, FlagsNameAllTheirKinds) {
  const std::string train = words_of(witan({"train", "--help-all"}).out);
  EXPECT_TRUE(contains(train,
                       "a Hugging Face folder, PEFT's folder of LoRA adapters, a GGUF file, a Megatron-LM checkpoint, "
                       "the name or folder of a run"));
  const std::string data = words_of(witan({"data", "--help"}).out);
  EXPECT_TRUE(contains(data, "Use this tokenizer, a file or folder of any kind, instead of training")) << data;
}

TEST(HelpTest, CommandsWithFewFlagsHaveOneHelp) {
  for (const char* command : {"generate", "runs", "tokenizer"})
    EXPECT_EQ(witan({command, "--help"}).out, witan({command, "--help-all"}).out);
  EXPECT_EQ(witan({"--help-all"}).out, witan({"--help"}).out);
}

TEST(HelpTest, ColoursHighlightHeadingsAndFlags) {
  const std::string page = "What it does\n\nusage: witan x\n\ngeneral:\n  -h,--help            Show: this\n";
  EXPECT_EQ(cli::coloured_help(page, false), page);
  EXPECT_EQ(cli::coloured_help(page, true),
            "What it does\n\n\x1b[1musage:\x1b[0m witan x\n\n\x1b[1mgeneral:\x1b[0m\n  \x1b[36m-h,--help\x1b[0m"
            "            Show: this\n");
}

// The program's output on a terminal.
std::string on_terminal(const std::vector<std::string>& words, const std::vector<std::string>& variables) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
  const int other_end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);  // keeps the terminal open while it is read
  std::string text;
  std::thread reader([&] {
    char piece[4096];
    for (ssize_t got; text.find("THE END") == std::string::npos && (got = ::read(terminal, piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<size_t>(got));
  });
  std::string command = "exec >" + std::string(::ptsname(terminal)) + " 2>&1; ";
  for (const std::string& word : words) command += "'" + word + "' ";
  TempFolder folder;
  Program program({"/bin/sh", "-c", command + "; echo THE END"}, folder / "log", variables);
  program.wait();
  reader.join();
  ::close(other_end);
  ::close(terminal);
  return text;
}

TEST(HelpTest, IsColouredOnlyOnTerminals) {
  const std::vector<std::string> help = {WITAN_PROGRAM, "report", "--help"}, wrong = {WITAN_PROGRAM, "reprot"};
  EXPECT_TRUE(contains(on_terminal(help, {"TERM=xterm", "NO_COLOR="}), "\x1b[1musage:\x1b[0m"));
  EXPECT_TRUE(contains(on_terminal(wrong, {"TERM=xterm", "NO_COLOR="}), "\x1b[1;31mwitan: error: \x1b[0m"));
  for (const char* plain : {"NO_COLOR=1", "TERM=dumb"}) {
    EXPECT_FALSE(contains(on_terminal(help, {plain}), "\x1b[")) << plain;
    EXPECT_FALSE(contains(on_terminal(wrong, {plain}), "\x1b[")) << plain;
  }
  EXPECT_FALSE(contains(witan({"report", "--help"}).out, "\x1b["));
}

TEST(HelpTest, CommandsAreDescribedWithTheirFlags) {
  const cli::DescribedCommand all = all_commands();
  const auto command = [&](const cli::DescribedCommand& of, const std::string& name) {
    const auto found = std::ranges::find(of.commands, name, &cli::DescribedCommand::name);
    EXPECT_NE(found, of.commands.end()) << name;
    return *found;
  };
  const cli::DescribedCommand train = command(all, "train");
  RunConfig config;
  for (const Field& field : config.fields())
    EXPECT_EQ(std::ranges::count_if(train.options,
                                    [&](const cli::DescribedOption& one) {
                                      return one.names.front() == flag_name(field.name) &&
                                             one.type == field.type_name();
                                    }),
              1)
        << field.name;
  EXPECT_EQ(command(command(all, "data"), "fetch").name, "fetch");
  EXPECT_EQ(command(command(all, "runs"), "compare").arguments.front().values, cli::Values::runs);
}

// Completions of the shell for the words before the cursor and the current one.
std::string completed(const std::vector<std::string>& words, const fs::path& folder) {
  write_text(folder / "completions.bash", witan({"completions", "bash"}).out);
  std::string script = "cd '" + folder.string() + "'; compopt() { :; }; . ./completions.bash; COMP_WORDS=(witan";
  for (const std::string& word : words) script += " '" + word + "'";
  script += "); COMP_CWORD=" + std::to_string(words.size()) + "; _witan; printf '%s ' \"${COMPREPLY[@]}\"";
  Program shell({"/bin/bash", "-c", script}, folder / "log");
  EXPECT_EQ(shell.wait(), 0);
  return read_text(folder / "log");
}

TEST(CompletionsTest, BashCompletesCommandsFlagsChoicesAndRuns) {
  const TempFolder folder;
  for (const char* run : {"base", "tuned"}) write_text(folder / (std::string("runs/") + run + "/config.toml"), "");
  write_text(folder / "mine.toml", "");
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"tr"}), "train ");
  EXPECT_EQ(complete({"data", "fe"}), "fetch ");
  EXPECT_EQ(complete({"train", "--moe-router-topk"}), "--moe-router-topk --moe-router-topk-scaling-factor ");
  EXPECT_EQ(complete({"train", "--lr", "1e-3", "--preset", "gpt2"}), "gpt2-124m ");
  EXPECT_EQ(complete({"train", "--lr-decay-style", "co"}), "constant cosine ");
  EXPECT_EQ(complete({"generate", "--run", "t"}), "tuned ");
  EXPECT_EQ(complete({"runs", "compare", "base", ""}), "base tuned ");
  EXPECT_EQ(complete({"train", "--config", "mi"}), "mine.toml ");
  EXPECT_EQ(complete({"train", "--lr", ""}), " ");
  EXPECT_EQ(complete({"completions", "--he"}), "--help --help-all ");
  EXPECT_EQ(complete({"completions", ""}), "bash zsh fish ");
  EXPECT_EQ(complete({"completions", "z"}), "zsh ");
}

TEST(CompletionsTest, BashCompletesTheChoicesOfEveryOption) {
  const TempFolder folder;
  write_text(folder / "auto.txt", "");
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"train", "--optimizer", "mu"}), "muon ");
  EXPECT_EQ(complete({"train", "--dtype", "bf"}), complete({"plan", "--dtype", "bf"}));
  EXPECT_EQ(complete({"generate", "--device", ""}), "auto cpu cuda ") << "not files";
  EXPECT_EQ(complete({"bench", "gemm", "--dtype", "float3"}), "float32 ");
  EXPECT_EQ(complete({"export", "--format", ""}), "hf gguf megatron peft ");
  EXPECT_EQ(complete({"data", "dedup", "--method", "m"}), "minhash ");
  EXPECT_EQ(complete({"data", "fetch", "--preset", "fineweb-edu-10b"}), "fineweb-edu-10bt ");
  EXPECT_EQ(complete({"bench", "moe-layer", "--skew", ""}), "hot ") << "shares and ratios are numbers";
  EXPECT_EQ(complete({"import", "au"}), "auto.txt ");
}

TEST(CompletionsTest, BooleansAreFollowedByValuesOrTheNextFlag) {
  const TempFolder folder;
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"train", "--swiglu", ""}), "true false ");
  EXPECT_EQ(complete({"train", "--swiglu", "--moe-router-top"}), complete({"train", "--moe-router-top"}));
  EXPECT_EQ(complete({"train", "--swiglu", "false", "--optim"}), complete({"train", "--optim"}));
}

// Recipes are found from every folder.
TEST(CompletionsTest, ConfigurationsAreFilesOrRecipes) {
  const TempFolder folder;
  write_text(folder / "reference.toml", "");
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"train", "--config", "re"}), "reference.toml " + complete({"train", "--config", "rec"}));
  EXPECT_EQ(complete({"train", "--config", "recipes/ref"}), "recipes/reference/dense.toml recipes/reference/moe.toml ");
  EXPECT_TRUE(
      contains(witan({"completions", "zsh"}).out, "_files; compadd -- recipes/balance.toml recipes/default.toml "));
  EXPECT_TRUE(contains(witan({"completions", "fish"}).out, " -l config -r -F -a 'recipes/balance.toml "));
}

// Bash splits @FILE into two COMP_WORDS if @ separates words, as it does by default. The completion replaces both and
// begins with @.
TEST(CompletionsTest, ResponseFilesAreFilesOrRecipes) {
  const TempFolder folder;
  write_text(folder / "recorded.args", "");
  write_text(folder / "lists/own.args", "");
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"train", "@", "recipes/megatron/m"}),
            "@recipes/megatron/mixtral.args @recipes/megatron/moe_ep4.args ");
  EXPECT_EQ(complete({"plan", "--gpus", "8", "@", "rec"}), "@recorded.args " + complete({"train", "@", "recip"}));
  EXPECT_EQ(complete({"plan", "@", "li"}), "@lists/ ");
  EXPECT_EQ(complete({"plan", "@", "lists/"}), "@lists/own.args ");
  const std::string all = complete({"train", "@"});
  EXPECT_TRUE(contains(all, "@recorded.args ") && all.ends_with(" " + complete({"train", "@", "recip"}))) << all;
  EXPECT_EQ(complete({"train", "@recipes/megatron/mi"}), "@recipes/megatron/mixtral.args ");
  EXPECT_TRUE(contains(witan({"completions", "zsh"}).out,
                       "if compset -P @; then _files; compadd -- recipes/megatron/dense.args "));
  EXPECT_TRUE(contains(witan({"completions", "fish"}).out, " -a '(__witan_at_files recipes/megatron/dense.args "));
}

TEST(CompletionsTest, ChoicesOfAListFollowItsCommas) {
  const TempFolder folder;
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"train", "--recompute-modules", "mo"}), "moe_act moe ");
  EXPECT_EQ(complete({"train", "--recompute-modules", "layernorm,mlp_act,mo"}),
            "layernorm,mlp_act,moe_act layernorm,mlp_act,moe ");
  EXPECT_EQ(complete({"train", "--recompute-modules", "=", "mlp,s"}), "mlp,shared_experts ");
  EXPECT_EQ(complete({"plan", "--lora-target-modules", "q_proj,v"}), "q_proj,v_proj ");
  EXPECT_EQ(complete({"train", "--moe-router-load-balancing-type", "aux_loss,s"}), "aux_loss,seq_aux_loss ");
  EXPECT_TRUE(contains(witan({"completions", "zsh"}).out, "compset -P '*,'; compadd -q -S , -- layernorm mlp_act "));
  EXPECT_TRUE(
      contains(witan({"completions", "fish"}).out, "-l recompute-modules -x -a '(__witan_list layernorm mlp_act "));
}

// COMP_WORDS as bash splits --flag=value.
TEST(CompletionsTest, TheCommandAfterDashesOfRunHasItsFlags) {
  const TempFolder folder;
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"run", "--ranks", "2", "--", "trai"}), "train ");
  EXPECT_EQ(complete({"run", "--ranks", "2", "--", "train", "--moe-router-topk-s"}),
            "--moe-router-topk-scaling-factor ");
  EXPECT_EQ(complete({"run", "--", "train", "--dtype", "bf"}), complete({"train", "--dtype", "bf"}));
  EXPECT_TRUE(contains(complete({"run", "--r"}), "--ranks ")) << "its own flags before them";
  EXPECT_EQ(complete({"train", "--", "trai"}), " ") << "other commands are not followed by a command";
}

TEST(CompletionsTest, ChoicesFollowAnEqualsSign) {
  const TempFolder folder;
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  EXPECT_EQ(complete({"train", "--optimizer", "="}), complete({"train", "--optimizer", ""}));
  EXPECT_EQ(complete({"train", "--optimizer", "=", "mu"}), "muon ");
  EXPECT_EQ(complete({"train", "--lr=1e-3", "--swiglu", "=", "f"}), "false ");
}

TEST(CompletionsTest, HelpAndManTakeNamesOfCommands) {
  const TempFolder folder;
  write_text(folder / "train.txt", "");
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path()); };
  for (const char* command : {"help", "man"}) {
    EXPECT_EQ(complete({command, "tr"}), "train ");
    EXPECT_EQ(complete({command, "data", "fe"}), "fetch ");
    EXPECT_TRUE(contains(complete({command, "data", ""}), "prepare "));
    EXPECT_EQ(complete({command, "train", ""}), " ") << "not files";
  }
  EXPECT_EQ(complete({"help", "--al"}), "--all ");
  EXPECT_EQ(complete({"help", "train", "--al"}), "--all ");
  const std::string zsh = witan({"completions", "zsh"}).out, fish = witan({"completions", "fish"}).out;
  EXPECT_TRUE(contains(zsh, "      \"man\"|\"help\")\n"));
  EXPECT_TRUE(contains(zsh, "compadd -- bash zsh fish"));
  EXPECT_TRUE(contains(fish, "complete -c witan -n '__witan_about \" data\" help man' -f -a fetch "));
  EXPECT_TRUE(contains(fish, "complete -c witan -n '__witan_at \" completions\"' -f -a 'bash zsh fish'"));
}

Field optimizer_field() {
  static RunConfig config;
  for (const Field& field : config.fields())
    if (field.name == "optimizer") return field;
  ADD_FAILURE() << "there is no optimizer to choose";
  return {};
}

// zsh and fish may not be installed: their scripts are built from the same data as bash's, which is tested above.
TEST(CompletionsTest, EveryShellKnowsEveryFlag) {
  const std::string zsh = witan({"completions", "zsh"}).out, fish = witan({"completions", "fish"}).out;
  RunConfig config;
  for (const Field& field : config.fields()) {
    EXPECT_TRUE(contains(zsh, "'" + flag_name(field.name) + ":")) << field.name;
    EXPECT_TRUE(contains(fish, " -l " + flag_name(field.name).substr(2) + " ")) << field.name;
  }
  EXPECT_TRUE(zsh.starts_with("#compdef witan\n"));
  EXPECT_TRUE(contains(zsh, "${path_:+$path_ }${words[i]}")) << "path is the search path of zsh";
  EXPECT_TRUE(contains(fish, "complete -c witan -n '__witan_at \" data fetch\"' -l preset "));
  for (const std::string& script : {zsh, fish, witan({"completions", "bash"}).out})
    EXPECT_EQ(std::ranges::count(std::regex_replace(script, std::regex(R"(\\')"), ""), '\'') % 2, 0)
        << "unescaped quotes are closed";
  const std::string optimizers = std::regex_replace(optimizer_field().type_name(), std::regex("\\|"), " ");
  EXPECT_TRUE(contains(zsh, "compadd -- " + optimizers + "; return"));
  EXPECT_TRUE(contains(zsh, "[[ $cur == -* ]] || { compadd -- true false; return; }"));
  EXPECT_TRUE(contains(zsh, "compset -P '*='"));
  EXPECT_TRUE(contains(fish, "complete -c witan -n '__witan_at \" train\"' -l optimizer -x -a '" + optimizers + "' "));
  EXPECT_TRUE(contains(fish, " -l swiglu -x -a 'true false' "));
  EXPECT_TRUE(contains(fish, "complete -c witan -n '__witan_at \" generate\"' -l device -x -a 'auto cpu cuda' "));
  expect_refusal({"completions", "tcsh"}, 2, {"tcsh"});
  expect_refusal({"completions"}, 2, {"shell"});
}

TEST(ManPageTest, HasEveryCommandAndFlag) {
  const std::string page = witan({"man"}).out;
  EXPECT_TRUE(page.starts_with(".TH WITAN 1 2")) << page.substr(0, 80);
  const cli::DescribedCommand all = all_commands();
  const auto heading = [](const std::string& path) {
    return ".SS witan " + std::regex_replace(path, std::regex("-"), "\\-") + "\n";
  };
  for (const cli::DescribedCommand& command : all.commands) {
    EXPECT_TRUE(contains(page, heading(command.name))) << command.name;
    for (const cli::DescribedCommand& inner : command.commands)
      EXPECT_TRUE(contains(page, heading(command.name + " " + inner.name))) << inner.name;
  }
  EXPECT_TRUE(contains(page, "\\fB\\-\\-moe\\-router\\-topk\\fR \\fIinteger\\fR\n"));
  const std::string train = witan({"man", "train"}).out;
  EXPECT_TRUE(train.starts_with(".TH WITAN-TRAIN 1 "));
  EXPECT_TRUE(contains(train, ".SH NAME\nwitan-train \\- Train a model from text"));
  EXPECT_TRUE(witan({"man", "data", "fetch"}).out.starts_with(".TH WITAN-DATA-FETCH 1 "));
  EXPECT_TRUE(contains(witan({"man", "bench", "moe-layer"}).out, "\n\\fBwitan bench moe\\-layer\\fR"));
  expect_refusal({"man", "nothing"}, 2, {"unknown command nothing"});
}

TEST(ManPageTest, HasTheDateOfAReproducibleBuild) {
  setenv("SOURCE_DATE_EPOCH", "951782400", 1);
  const std::string page = witan({"man", "train"}).out;
  unsetenv("SOURCE_DATE_EPOCH");
  EXPECT_TRUE(page.starts_with(".TH WITAN-TRAIN 1 2000-02-29 ")) << page.substr(0, 80);
}

// No line of the text is a roff request, and groff, if installed, has no warnings.
TEST(ManPageTest, IsRoffWithoutWarnings) {
  const TempFolder folder;
  static const std::vector<std::string> requests = {".TH", ".SH", ".SS", ".TP", ".PP", ".ad", ".br", ".nf", ".fi"};
  std::istringstream lines(witan({"man"}).out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(".") && !line.starts_with("'")) continue;
    EXPECT_NE(std::ranges::find(requests, line.substr(0, 3)), requests.end()) << line;
  }
  if (!fs::exists("/usr/bin/groff")) GTEST_SKIP() << "groff is not installed";
  write_text(folder / "witan.1", witan({"man"}).out);
  Program groff({"/bin/sh", "-c",
                 "groff -k -man -Tutf8 -wmac -wmissing -wsyntax -wscale -wchar -wescape -z '" +
                     (folder / "witan.1").string() + "'"},
                folder / "log");
  EXPECT_EQ(groff.wait(), 0);
  EXPECT_EQ(read_text(folder / "log"), "");
}

}  // namespace
}  // namespace witan::test

#include "witan/cli/help.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "witan/base/text.h"
#include "witan/cli/compat/megatron.h"
#include "witan/report/progress/progress.h"
#include "witan/train/config/config.h"

namespace witan::cli {
namespace {

// The key of a flag's name: "--moe-router-topk" is moe_router_topk.
std::string key_of_flag(std::string flag) {
  flag.erase(0, flag.find_first_not_of('-'));
  std::ranges::replace(flag, '-', '_');
  return flag;
}

std::set<std::string> sections_of_configuration() {
  RunConfig config;
  std::set<std::string> sections;
  for (const Field& field : config.fields()) sections.insert(field.section);
  return sections;
}

bool is_common_key(std::string_view key) {
  static constexpr std::string_view kCommon[] = {
      // the run
      "run",
      "runs_folder",
      "train_iters",
      "micro_batch_size",
      "global_batch_size",
      "seed",
      "eval_interval",
      "save_interval",
      "keep_last",
      "keep_best",
      "early_stopping_patience",
      "init_from",
      // the model
      "num_layers",
      "hidden_size",
      "ffn_hidden_size",
      "num_attention_heads",
      "num_query_groups",
      "dtype",
      "recompute_granularity",
      "num_experts",
      "moe_router_topk",
      "moe_ffn_hidden_size",
      "lora_rank",
      // data
      "data",
      "data_path",
      "tokenizer",
      "tokenizer_vocab_size",
      "seq_length",
      "valid_data",
      "sft",
      "preferences",
      // rewards
      "objective",
      "kl_loss_coef",
      "rollouts",
      "num_generations",
      "max_completion_length",
      "reward",
      "reward_command",
      // optimization
      "optimizer",
      "lr",
      "min_lr",
      "lr_warmup_iters",
      "lr_decay_style",
      "weight_decay",
      "clip_grad",
      // the machine
      "mesh",
      "ranks",
      "device",
      "threads",
      "deterministic",
  };
  return std::ranges::find(kCommon, key) != std::end(kCommon);
}

// Whether a command's short help leaves the option out: it sets a key of the configuration that is not a common one.
bool is_uncommon_flag(const std::string& flag, const std::string& group) {
  static const std::set<std::string> sections = sections_of_configuration();
  return sections.contains(group) && !is_common_key(key_of_flag(flag));
}

constexpr size_t kColumn = 34;  // the descriptions begin here

// The text, indented and wrapped at spaces to the width of the page.
std::string wrapped(const std::string& text, size_t indent) {
  std::string out;
  size_t column = indent;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const bool new_line = begin > 0 && text[begin - 1] == '\n';
    if (new_line || (column > indent && column + 1 + end - begin > kHelpWidth)) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out;
}

// One entry: "  left   description". If `left` is too wide for its column, it gets a line of its own.
std::string entry(const std::string& left, const std::string& meaning) {
  std::string out = "  " + left;
  if (out.size() + 2 > kColumn)
    out += '\n' + std::string(kColumn, ' ');
  else
    out.resize(kColumn, ' ');
  return out + wrapped(meaning, kColumn) + '\n';
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const override {
    return wrapped(app->get_description(), 0) + "\n\n" + make_usage(app, "") + make_positionals(app) +
           option_groups(*app, mode) + make_subcommands(app, CLI::AppFormatMode::Normal) + "\n" + app->get_footer();
  }

  std::string make_usage(const CLI::App* app, std::string) const override {
    std::string arguments;
    for (const CLI::Option* option : app->get_options([](const CLI::Option* o) { return o->get_positional(); }))
      arguments += " " + make_option_usage(option);
    const bool groups = !app->get_subcommands([](const CLI::App*) { return true; }).empty();
    return fmt::format("usage: {}{}{} [--flags]\n", path_of(*app), groups ? " COMMAND" : "", arguments);
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string left = make_option_name(option, is_positional);
    if (!option->get_type_name().empty()) left += " " + option->get_type_name();
    std::string meaning = option->get_description();
    const std::string standard = option->get_default_str();  // a list has brackets already
    if (!standard.empty()) meaning += standard.starts_with('[') ? " " + standard : " [" + standard + "]";
    return entry(left, meaning);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description().substr(0, command->get_description().find('\n')));
  }

 private:
  // Only the common keys of a configuration, unless all were asked for.
  std::string option_groups(const CLI::App& app, CLI::AppFormatMode mode) const {
    std::string out;
    size_t left_out = 0;
    for (const std::string& group : app.get_groups()) {
      auto options = app.get_options([&](const CLI::Option* option) {
        return option->get_group() == group && option->nonpositional() && !group.empty();
      });
      if (mode != CLI::AppFormatMode::All)
        left_out += std::erase_if(options, [&](const CLI::Option* option) {
          return !option->get_lnames().empty() && is_uncommon_flag(option->get_lnames().front(), group);
        });
      if (!options.empty()) out += make_group(group, false, options);
    }
    if (left_out > 0)
      out +=
          fmt::format("\n{} more flags, of all keys of the configuration: `{} --help-all`\n", left_out, path_of(app));
    return out;
  }
};

ExitCode show_help(const CLI::App& app, const Context& context, const std::vector<std::string>& path,
                   HelpLength length) {
  if (path == std::vector<std::string>{"megatron"}) {
    fmt::print(context.out, "{}", megatron_reference());
    return ExitCode::done;
  }
  const CLI::App* at = &app;
  for (const std::string& name : path) {
    const auto names = names_of_commands(*at);
    require<UsageError>(std::find(names.begin(), names.end(), name) != names.end(), "unknown command ", clipped(name),
                        suggestion(name, names), "; `witan help` lists them");
    at = at->get_subcommand(name);
  }
  fmt::print(context.out, "{}", coloured_help(help_of(*at, length), progress_options(context.out).colour));
  return ExitCode::done;
}

constexpr const char *kBold = "\x1b[1m", *kFlag = "\x1b[36m", *kPlain = "\x1b[0m";

std::string coloured_line(const std::string& line) {
  if (line.empty()) return line;
  constexpr std::string_view kUsage = "usage:";
  if (line.starts_with(kUsage)) return kBold + std::string(kUsage) + kPlain + line.substr(kUsage.size());
  if (line.front() != ' ' && line.back() == ':' && line.find(' ') == std::string::npos) return kBold + line + kPlain;
  if (!line.starts_with("  -")) return line;
  const size_t end = std::min(line.find("   "), line.size());  // end of the names and their type
  const size_t names = std::min(line.find_first_of(" ", 2), end);
  return "  " + (kFlag + line.substr(2, names - 2) + kPlain) + line.substr(names);
}

}  // namespace

std::string path_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? path_of(*parent) + " " + command.get_name() : command.get_name();
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  auto formatter = std::make_shared<HelpFormatter>();
  formatter->label("Positionals", "arguments");
  return formatter;
}

// Uses the formatter directly, since App::help() would show the help of the command that was parsed.
std::string help_of(const CLI::App& command, HelpLength length) {
  const auto mode = length == HelpLength::all ? CLI::AppFormatMode::All : CLI::AppFormatMode::Normal;
  return command.get_formatter()->make_help(&command, command.get_name(), mode);
}

void add_help(CLI::App& app, Context& context) {
  struct HelpArgs {
    std::vector<std::string> path;
    bool all = false;
  };
  const auto args = std::make_shared<HelpArgs>();
  CLI::App* command =
      add_command(app, context,
                  {"help", "Show the help of a command",
                   "`witan help megatron` lists Megatron-LM's flags and their effect in Witan.",
                   "witan help train\nwitan help train --all\nwitan help tokenizer encode\nwitan help megatron"},
                  [&app, &context, args] {
                    const HelpLength length = args->all ? HelpLength::all : HelpLength::common;
                    return show_help(app, context, args->path, length);
                  });
  command->add_option("command", args->path, "Name of the command");
  command->add_flag("--all", args->all, "Show every flag, as the command's --help-all does");
}

std::string coloured_help(const std::string& help, bool colour) {
  if (!colour) return help;
  std::istringstream lines(help);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += coloured_line(line) + '\n';
  return out;
}

}  // namespace witan::cli

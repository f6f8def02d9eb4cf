// The manual page, witan(1), in the macros of man(7).
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/help/described_commands.h"

namespace witan::cli {
namespace {

// Escapes text for roff: backslashes are no escapes, hyphens are ASCII's, points and quotes begin no request, and a
// list of choices may be broken after each.
std::string escape_roff(const std::string& text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '|')
      out += "|\\:";
    else
      out += c;
    begins = c == '\n';
  }
  return out;
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

// A paragraph with a hanging term; lines of the description stay lines.
std::string term(const std::string& left, std::string meaning) {
  for (size_t at = 0; (at = meaning.find('\n', at)) != std::string::npos; at += 5) meaning.replace(at, 1, "\n.br\n");
  std::string escaped;
  for (size_t begin = 0; begin <= meaning.size();) {  // escapes each line, but not the requests between them
    const size_t end = std::min(meaning.find('\n', begin), meaning.size());
    const std::string line = meaning.substr(begin, end - begin);
    escaped += (line == ".br" ? line : escape_roff(line)) + "\n";
    begin = end + 1;
  }
  return ".TP\n" + left + "\n" + escaped;
}

std::string bold(const std::string& text) {
  return "\\fB" + escape_roff(text) + "\\fR";
}
std::string italic(const std::string& text) {
  return "\\fI" + escape_roff(text) + "\\fR";
}

std::string option_term(const DescribedOption& option) {
  std::string left;
  for (const std::string& name : option.names) left += (left.empty() ? "" : ", ") + bold(name);
  if (!option.type.empty()) left += " " + italic(option.type);
  return term(left, option.default_text.empty() ? option.meaning : option.meaning + " [" + option.default_text + "]");
}

// Prints the options in the groups of the help.
std::string options_of(const DescribedCommand& command) {
  std::vector<std::string> groups;
  for (const DescribedOption& option : command.options)
    if (std::ranges::find(groups, option.group) == groups.end()) groups.push_back(option.group);
  std::string out;
  for (const DescribedOption& argument : command.arguments)
    out += term(italic(argument.names.front()), argument.meaning);
  for (const std::string& group : groups) {
    if (!group.empty()) out += ".PP\n" + bold(group) + "\n";
    for (const DescribedOption& option : command.options)
      if (option.group == group) out += option_term(option);
  }
  return out;
}

std::string examples_of(const DescribedCommand& command) {
  return command.examples.empty() ? "" : ".PP\n.nf\n" + escape_roff(command.examples) + ".fi\n";
}

std::string synopsis_of(const DescribedCommand& command, const std::string& path) {
  std::string line = bold(path);
  if (!command.commands.empty()) line += " " + italic("COMMAND");
  for (const DescribedOption& argument : command.arguments)
    line += argument.is_required ? " " + italic(argument.names.front()) : " [" + italic(argument.names.front()) + "]";
  return line + " [" + italic("--flags") + "]\n";
}

std::string command_sections(const DescribedCommand& command, const std::string& path) {
  std::string out = ".SS " + escape_roff(path) + "\n" + escape_roff(command.summary) + ".\n";
  if (!command.details.empty()) out += ".PP\n" + escape_roff(command.details) + "\n";
  out += options_of(command) + examples_of(command);
  for (const DescribedCommand& one : command.commands) out += command_sections(one, path + " " + one.name);
  return out;
}

// The exit codes, as in the table of docs/cli.md.
std::string exit_codes() {
  static constexpr std::pair<ExitCode, const char*> kCodes[] = {
      {ExitCode::done, "done"},
      {ExitCode::internal, "a bug in Witan"},
      {ExitCode::usage, "the command line is wrong"},
      {ExitCode::config, "a configuration is wrong"},
      {ExitCode::data, "text, tokenizer or token shards cannot be used, or a file cannot be read"},
      {ExitCode::checkpoint, "a checkpoint is missing, damaged or of another model"},
      {ExitCode::diverged, "the training diverged"},
      {ExitCode::rank_lost, "a rank failed or was lost"},
      {ExitCode::out_of_memory, "too little memory"},
      {ExitCode::disk_full, "too little disk space"},
      {ExitCode::device, "a device is missing or failed"},
      {ExitCode::preempted, "stopped by SIGTERM or SIGUSR1, or by exit_interval or exit_duration_in_mins, and saved"},
      {ExitCode::interrupted, "stopped by Ctrl-C, and saved"},
  };
  std::string out;
  for (const auto& [code, meaning] : kCodes) out += term(bold(std::to_string(static_cast<int>(code))), meaning);
  return out;
}

// Today, or the date of SOURCE_DATE_EPOCH (reproducible-builds.org/specs/source-date-epoch).
std::string date_of_page() {
  std::time_t seconds = std::time(nullptr);
  if (const char* epoch = std::getenv("SOURCE_DATE_EPOCH")) seconds = std::strtoll(epoch, nullptr, 10);
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(seconds));
}

}  // namespace

// The page of the program with all its commands, or of one command. `path`: "witan" or "witan bench moe-layer"; `date`:
// "2026-01-31"; `version`: shown in the page's footer.
std::string man_page(const DescribedCommand& command, const std::string& path, const std::string& date,
                     const std::string& version) {
  std::string title = path;
  std::ranges::replace(title, ' ', '-');
  std::string out = fmt::format(".TH {} 1 {} \"Witan {}\" \"User Commands\"\n.ad l\n", upper(title), date, version);
  out += ".SH NAME\n" + title + " \\- " + escape_roff(command.summary) + "\n";
  out += ".SH SYNOPSIS\n" + synopsis_of(command, path);
  if (!command.details.empty()) out += ".SH DESCRIPTION\n" + escape_roff(command.details) + "\n";
  out += ".SH OPTIONS\n" + options_of(command);
  if (!command.commands.empty()) out += ".SH COMMANDS\n";
  for (const DescribedCommand& one : command.commands) out += command_sections(one, path + " " + one.name);
  if (!command.examples.empty()) out += ".SH EXAMPLES\n" + examples_of(command);
  out += ".SH EXIT STATUS\n" + exit_codes();
  out += ".SH FILES\n" +
         term("runs/" + italic("NAME"), "A run: config.toml, metrics.jsonl, train.log, report.html, checkpoints.");
  out += ".SH ENVIRONMENT\n" + term(bold("NO_COLOR"), "Where it is set, nothing is coloured.");
  return out;
}

void add_man(CLI::App& app, Context& context) {
  const auto path = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      add_command(app, context,
                  {"man", "Print the manual page of witan, or of one command",
                   "The page has every command with all of its flags, from the lists that the program itself reads.",
                   "witan man > witan.1\nwitan man train > witan-train.1"},
                  [&app, &context, path] {
                    DescribedCommand at = describe(app);
                    std::string path_there = at.name;
                    for (const std::string& name : *path) {
                      const auto found = std::ranges::find(at.commands, name, &DescribedCommand::name);
                      require<UsageError>(found != at.commands.end(), "unknown command ", clipped(name),
                                          "; `witan help` lists them");
                      DescribedCommand inner = std::move(*found);
                      at = std::move(inner);
                      path_there += " " + name;
                    }
                    fmt::print(context.out, "{}", man_page(at, path_there, date_of_page(), WITAN_VERSION));
                    return ExitCode::done;
                  });
  add_option(*command, "command", *path, "Name of the command").type_name("");
}

}  // namespace witan::cli

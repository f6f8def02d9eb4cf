#include "witan/cli/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/cli/command.h"
#include "witan/cli/compat/megatron.h"
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/environment.h"
#include "witan/cli/help.h"
#include "witan/cli/other_names.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {
namespace {

// The command that the arguments reached: `witan tokenizer train` rather than `witan`.
const CLI::App& reached(const CLI::App& app) {
  const CLI::App* at = &app;
  for (auto parsed = at->get_subcommands(); !parsed.empty(); parsed = at->get_subcommands()) at = parsed.back();
  return *at;
}

bool takes_megatron_flags(const std::string& path) {
  return path == "witan plan" || path == "witan train" || path == "witan bench step" || path == "witan config show";
}

// The words for CLI11: response files are read, and Megatron-LM's flags translated into Witan's.
std::vector<std::string> words_of(int argc, const char* const* argv, Context& context) {
  std::vector<std::string> words(argv, argv + argc);
  const bool has_subcommands = words.size() > 1 && (words[1] == "bench" || words[1] == "config");
  const size_t command = has_subcommands ? 3 : 2;  // words of its path
  if (words.size() <= command) return words;
  std::string path = "witan";
  for (size_t i = 1; i < command; ++i) path += " " + words[i];
  if (!takes_megatron_flags(path)) return words;
  context.megatron = read_megatron_line({words.begin() + static_cast<ptrdiff_t>(command), words.end()});
  if (!context.megatron) return words;
  words.resize(command);
  for (std::string& word : witan_arguments(*context.megatron)) words.push_back(std::move(word));
  return words;
}

std::vector<std::string> flag_names_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  if (takes_megatron_flags(path_of(command)))
    for (std::string& name : megatron_flag_names()) flags.push_back(std::move(name));
  return flags;
}

// Explains a flag that is given twice, or without its value.
std::string explain_count(const CLI::App& command, const CLI::ArgumentMismatch& error) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() != 1 || option->results().size() < 2) continue;
    const auto& values = option->results();
    return cat(option->get_name(), " is given twice, with ", clipped(values[0]), " and with ", clipped(values[1]),
               ": give it once");
  }
  const std::string what = error.what(), name = what.substr(0, what.find(':'));
  return name.starts_with('-') ? cat(name, " needs a value") : what;
}

// Explains what is missing. CLI11 uses internal names of arguments: "names is required".
std::string explain_missing(const std::string& path, const CLI::RequiredError& error) {
  if (path == "witan runs remove") return "name the runs to remove: witan runs remove NAME...";
  if (path == "witan runs compare") return "name the runs to compare: witan runs compare NAME NAME...";
  if (path == "witan runs snapshot") return "name the run to ask: witan runs snapshot NAME";
  return error.what();
}

// " (did you mean --seq-length?)", or Witan's way to do what another program's flag does.
std::string advice_on_flag(const std::string& flag, const CLI::App& command) {
  const std::string spelt = with_dashes(flag);
  const std::vector<std::string> names = flag_names_of(command);
  const bool trains = takes_megatron_flags(path_of(command));
  if (const std::string way = trains ? way_instead(spelt) : ""; !way.empty()) return ": " + way;
  const std::string near = suggestion(spelt, names, other_flags()), slip = trains ? nearest_way(spelt) : "";
  return near.empty() && !slip.empty() ? cat(" (did you mean ", slip, "? ", way_instead(slip), ")") : near;
}

// Words that the command does not take, without the -- that separates flags from other words.
std::vector<std::string> unknown_words(const CLI::App& command) {
  std::vector<std::string> words = command.remaining();
  std::erase(words, "--");
  return words;
}

// Explains why CLI11 refused a command line. An unknown word comes first: it often is why something else is missing.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = reached(app);
  const std::string path = path_of(command), more = cat("; `", path, " --help` lists commands and flags");
  const auto unknown = unknown_words(command);
  if (unknown.empty()) {
    std::string why = error.what();
    if (const auto* mismatch = dynamic_cast<const CLI::ArgumentMismatch*>(&error))
      why = explain_count(command, *mismatch);
    if (const auto* missing = dynamic_cast<const CLI::RequiredError*>(&error)) why = explain_missing(path, *missing);
    return cat(path, ": ", why, more);
  }
  const std::string word = unknown.front().substr(0, unknown.front().find('='));
  if (word.starts_with('-'))
    return cat(path, ": unknown flag ", clipped(word), advice_on_flag(word, command),
               path == "witan run" ? "; flags of `train` go after --" : "", more);
  const auto names = names_of_commands(command);
  if (path == "witan runs" && (word == "list" || word == "ls"))
    return cat(path, ": unknown command ", word, ": `", path, "` itself lists them");
  if (!names.empty())
    return cat(path, ": unknown command ", clipped(word), suggestion(word, names, other_commands()), more);
  return cat(path, ": unexpected argument ", clipped(word), more);
}

// Spells the command's flags with dashes: scripts of other programs write --input_dir for --input-dir. Words after a
// lone -- belong to another command.
void spell_with_dashes(const CLI::App& app, std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const auto named = command->get_subcommands([&](const CLI::App* one) { return one->get_name() == words[i]; });
    if (!named.empty()) command = named.front();
    const size_t end = std::min(words[i].find('='), words[i].size());
    const std::string flag = with_dashes(words[i].substr(0, end));
    if (command->get_option_no_throw(flag) != nullptr) words[i].replace(0, end, flag);
  }
}

bool is_integer(const std::string& word) {
  int64_t number;
  const char* end = word.data() + word.size();
  return std::from_chars(word.data(), end, number).ptr == end;
}

bool takes_number_or_nothing(const CLI::Option& option) {
  return option.get_type_name() == "[N]" && option.get_expected_min() == 0;
}

// CLI11 would take the next word for an optional number that is left out, as in --logprobs "the king".
void give_numbers_left_out(const CLI::App& app, std::vector<std::string>& words) {
  const auto commands = app.get_subcommands([&](const CLI::App* one) { return one->get_name() == words.at(1); });
  if (commands.empty()) return;
  for (size_t i = 2; i + 1 < words.size() && words[i] != "--"; ++i) {
    if (!words[i].starts_with("--") || words[i + 1].starts_with("--") || is_integer(words[i + 1])) continue;
    const CLI::Option* option = commands[0]->get_option_no_throw(words[i]);
    if (option && takes_number_or_nothing(*option)) words[i] += "=0";
  }
}

// Refuses a misspelled subcommand that is not a file: `witan data shufle` would read it as text.
void refuse_mistyped_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  for (size_t i = 1; i < words.size(); ++i) {
    const auto names = names_of_commands(*at);
    if (const auto found = std::find(names.begin(), names.end(), words[i]); found != names.end()) {
      at = at->get_subcommand(words[i]);
      continue;
    }
    std::error_code error;
    const bool is_file = fs::exists(words[i], error);
    const std::string near = names.empty() || words[i].starts_with('-') || is_file ? "" : nearest(words[i], names);
    require<UsageError>(near.empty(), path_of(*at), ": unknown command ", clipped(words[i]), " (did you mean ", near,
                        "?); `", path_of(*at), " --help` lists commands and flags");
    return;
  }
}

// The help of the command that the arguments reached.
void print_help(const CLI::App& app, HelpLength length, const Context& context) {
  fmt::print(context.out, "{}", coloured_help(help_of(reached(app), length), progress_options(context.out).colour));
}

void parse(CLI::App& app, int argc, const char* const* argv, Context& context) {
  std::vector<std::string> words = words_of(argc, argv, context);
  spell_with_dashes(app, words);
  if (words.size() > 1) give_numbers_left_out(app, words);
  refuse_mistyped_command(app, words);
  try {
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    app.parse(static_cast<int>(pointers.size()), pointers.data());
    if (app.get_subcommands().empty()) print_help(app, HelpLength::common, context);
  } catch (const CLI::CallForHelp&) {
    print_help(app, HelpLength::common, context);
  } catch (const CLI::CallForAllHelp&) {
    print_help(app, HelpLength::all, context);
  } catch (const CLI::CallForVersion&) {
    fmt::print(context.out, "witan {}\n", WITAN_VERSION);
  } catch (const CLI::ParseError& e) {
    throw UsageError(explain(app, e));
  }
}

// Flushes the output, so that a full disk or a closed pipe does not look like success.
void finish_output(const Context& context) {
  if (std::fflush(context.out) == 0 && !std::ferror(context.out)) return;
  throw IoError(cat("cannot write to the standard output: ", std::strerror(errno)),
                errno == ENOSPC ? ExitCode::disk_full : ExitCode::data);
}

// "`witan train`" as "`build/witan train`".
std::string with_program(std::string message, std::string_view program) {
  constexpr std::string_view kCommand = "`witan ";
  for (size_t at = message.find(kCommand); at != std::string::npos;
       at = message.find(kCommand, at + program.size() + 2))
    message.replace(at + 1, kCommand.size() - 2, program);
  return message;
}

ExitCode say(std::FILE* err, ExitCode code, const std::string& message) {
  const bool colour = progress_options(err).colour;
  const char *const red = colour ? "\x1b[1;31m" : "", *const plain = colour ? "\x1b[0m" : "";
  // Unlike fmt::print, fputs does not throw.
  std::fputs(fmt::format("{}witan: error: {}{}\n", red, plain, printable(message)).c_str(), err);
  if (code == ExitCode::internal)
    std::fputs("witan: this is a bug in Witan: please report the command and this message\n", err);
  return code;
}

}  // namespace

int run(int argc, const char* const* argv, Context& context) {
  CLI::App app(
      "Witan trains Mixture-of-Experts language models: from text to tokens, to a trained model, to generated text.",
      "witan");
  app.formatter(help_formatter());
  app.option_defaults()->group("options");
  app.get_help_ptr()->description("Show this help")->group("general");
  app.set_help_all_flag("--help-all", "Show this help with every flag")->group("");
  app.set_version_flag("--version", WITAN_VERSION, "Show the version")->group("general");
  app.require_subcommand(0, 1);
  app.footer("Start with `witan train`; `witan help COMMAND` shows a command's flags and examples.\n");
  add_what_runs(app, context, argc > 1 ? argv[1] : "");
  add_help(app, context);
  for (const std::string& warning : environment_warnings(environ)) std::fputs((warning + "\n").c_str(), context.err);
  const auto body = [&] {
    parse(app, argc, argv, context);
    finish_output(context);
    return context.code;
  };
  const ExitCode code = report_errors(context.err, body, context.program);
  return static_cast<int>(code);
}

ExitCode report_errors(std::FILE* err, const std::function<ExitCode()>& body, std::string_view program) {
  try {
    return body();
  } catch (const Error& e) {
    return say(err, e.code(), with_program(e.what(), program));
  } catch (const std::system_error& e) {  // a failure of the file system or of standard output
    const bool full = e.code() == std::errc::no_space_on_device;
    return say(err, full ? ExitCode::disk_full : ExitCode::data, e.what());
  } catch (const std::bad_alloc&) {
    return say(err, ExitCode::out_of_memory,
               "out of memory: close other programs, or make the model, the batch or the text smaller");
  } catch (const std::exception& e) {
    return say(err, ExitCode::internal, e.what());
  } catch (...) {
    return say(err, ExitCode::internal, "unknown error");
  }
}

}  // namespace witan::cli

#include "witan/cli/run.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>

#include "witan/base/text.h"
#include "witan/cli/commands.h"
#include "witan/cli/errors.h"
#include "witan/cli/help.h"

namespace witan::cli {
namespace {

// The command that the arguments reached: `witan tokenizer train` rather than `witan`.
const CLI::App& reached(const CLI::App& app) {
  const CLI::App* at = &app;
  for (auto parsed = at->get_subcommands(); !parsed.empty(); parsed = at->get_subcommands()) at = parsed.back();
  return *at;
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  return flags;
}

// What is wrong with a command line that CLI11 refused. An unknown word is a better reason than what is missing for it.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = reached(app);
  const std::string path = path_of(command), more = cat("; `", path, " --help` lists what there is");
  const auto unknown = command.remaining();
  if (unknown.empty()) return cat(path, ": ", error.what(), more);
  const std::string word = unknown.front().substr(0, unknown.front().find('='));
  if (word.starts_with('-'))
    return cat(path, ": there is no flag ", clipped(word), suggestion(word, flags_of(command)), more);
  const auto names = names_of_commands(command);
  if (!names.empty()) return cat(path, ": there is no command ", clipped(word), suggestion(word, names), more);
  return cat(path, ": unexpected argument ", clipped(word), more);
}

void parse(CLI::App& app, int argc, const char* const* argv, Context& context) {
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) fmt::print(context.out, "{}", app.help());
  } catch (const CLI::CallForHelp&) {
    fmt::print(context.out, "{}", app.help());
  } catch (const CLI::CallForVersion&) {
    fmt::print(context.out, "witan {}\n", WITAN_VERSION);
  } catch (const CLI::ParseError& e) {
    throw UsageError(explain(app, e));
  }
}

// A full disk or a closed pipe must not look like success.
void finish_output(const Context& context) {
  if (std::fflush(context.out) == 0 && !std::ferror(context.out)) return;
  throw IoError(cat("cannot write to the standard output: ", std::strerror(errno)),
                errno == ENOSPC ? ExitCode::disk_full : ExitCode::data);
}

}  // namespace

int run(int argc, const char* const* argv, Context& context) {
  CLI::App app(
      "Witan trains Mixture-of-Experts language models: text to tokens, tokens to a model, the model to samples.",
      "witan");
  app.formatter(help_formatter());
  app.option_defaults()->group("options");
  app.get_help_ptr()->description("show this help")->group("general");
  app.set_version_flag("--version", WITAN_VERSION, "show the version")->group("general");
  app.require_subcommand(0, 1);
  app.footer("Start with `witan train`; `witan help COMMAND` shows a command's flags and examples.\n");
  add_all(app, context);
  add_help(app, context);
  const ExitCode code = report_errors(context.err, [&] {
    parse(app, argc, argv, context);
    finish_output(context);
    return context.code;
  });
  return static_cast<int>(code);
}

}  // namespace witan::cli

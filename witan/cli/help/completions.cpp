// Scripts that complete witan's command lines in a shell: commands, flags, choices, presets, names of runs and files.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <functional>
#include <string>
#include <utility>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/recipes.h"
#include "witan/cli/command.h"
#include "witan/cli/help/described_commands.h"

namespace witan::cli {
namespace {

// Calls visit(path, command) for each command, "" for the program itself and "data fetch" for one of a group.
void for_each_command(const DescribedCommand& command, const std::string& path,
                      const std::function<void(const std::string&, const DescribedCommand&)>& visit) {
  visit(path, command);
  for (const DescribedCommand& one : command.commands)
    for_each_command(one, path.empty() ? one.name : path + " " + one.name, visit);
}

std::vector<std::string> flags_of_command(const DescribedCommand& command) {
  std::vector<std::string> flags;
  for (const DescribedOption& option : command.options)
    flags.insert(flags.end(), option.names.begin(), option.names.end());
  return flags;
}

std::vector<std::string> names_of(const DescribedCommand& command) {
  std::vector<std::string> names;
  for (const DescribedCommand& one : command.commands) names.push_back(one.name);
  return names;
}

std::string joined_words(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// Quotes the text as one word of a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += R"('\'')";
    else
      out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

std::string first_sentence(const std::string& meaning) {
  constexpr size_t kMost = 70;
  std::string line = meaning.substr(0, meaning.find_first_of("\n;:("));
  if (line.size() > kMost) line = line.substr(0, line.rfind(' ', kMost));
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// The response files that come with the program, for @FILE.
std::string response_files() {
  return joined_words(recipe_names(".args"));
}

// The cases of a shell's `case "$path:$flag"`, by action, each with all patterns that have this action.
using Cases = std::vector<std::pair<std::string, std::vector<std::string>>>;

void add_case(Cases& cases, const std::string& action, std::string pattern) {
  for (auto& [known, patterns] : cases)
    if (known == action) return patterns.push_back(std::move(pattern));
  cases.push_back({action, {std::move(pattern)}});
}

// The cases for values of flags. `action` returns the action for a flag's value, or nothing if it is unknown. After a
// flag whose value is optional the next flag may follow too.
template <class Action>
Cases value_cases(const DescribedCommand& app, const Action& action) {
  Cases cases;
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand& command) {
    for (const DescribedOption& option : command.options) {
      if (option.type.empty()) continue;
      std::string text = action(option);
      if (option.is_value_optional) text = fmt::format("[[ $cur == -* ]] || {{ {}; }}", text);
      for (const std::string& name : option.names) add_case(cases, text, "\"" + path + ":" + name + "\"");
    }
  });
  return cases;
}

std::string text_of_cases(const Cases& cases) {
  std::string out;
  for (const auto& [action, patterns] : cases)
    out += fmt::format("    {})\n      {}\n      ;;\n", fmt::join(patterns, "|"), action);
  return out;
}

// The cases for positional arguments, by the command's path; files if nothing else is known.
template <class Action>
Cases argument_cases(const DescribedCommand& app, const Action& action) {
  Cases cases;
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand& command) {
    if (command.arguments.empty() || !command.commands.empty()) return;
    const DescribedOption& argument = command.arguments.front();
    if (argument.values == Values::runs || argument.values == Values::words || argument.values == Values::folders)
      add_case(cases, action(argument), "\"" + path + "\"");
  });
  return cases;
}

// The pattern of commands whose arguments are names of commands.
std::string commands_of_commands(const DescribedCommand& app) {
  std::string pattern;
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand& command) {
    for (const DescribedOption& argument : command.arguments)
      if (argument.values == Values::commands) pattern += (pattern.empty() ? "" : "|") + ("\"" + path + "\"");
  });
  return pattern.empty() ? "\"-\"" : pattern;
}

// Sets `start`, the first word of this program's command line: in `witan run … -- train …` the one after --.
std::string start_loop(const char* words, int first, const char* end) {
  return fmt::format(
      "  start={1}\n"
      "  if [[ ${{{0}[{1}]}} == run ]]; then\n"
      "    for ((i = {3}; i < {2}; ++i)); do\n"
      "      if [[ ${{{0}[i]}} == -- ]]; then start=$((i + 1)); break; fi\n"
      "    done\n"
      "  fi\n",
      words, first, end, first + 1);
}

// Sets the variable `path` to the commands among the words before the cursor, from word `begin` on, up to the first
// word that is not a subcommand of the one before.
std::string path_loop(const DescribedCommand& app, const char* path_name, const char* words, const char* begin,
                      const char* end) {
  std::string commands;
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand&) {
    if (!path.empty()) commands += (commands.empty() ? "" : "|") + ("\"" + path + "\"");
  });
  return fmt::format(
      "  for (({4}; i < {2}; ++i)); do\n"
      "    case \"${{{0}:+${0} }}${{{1}[i]}}\" in\n"
      "      {3}) {0}=\"${{{0}:+${0} }}${{{1}[i]}}\" ;;\n"
      "      *) break ;;\n"
      "    esac\n"
      "  done\n",
      path_name, words, end, commands, *begin ? cat("i = ", begin) : "");
}

}  // namespace

// Names of runs are those in the folder runs/ of the shell's working directory.
std::string bash_completions(const DescribedCommand& app) {
  const auto action = [](const DescribedOption& option) -> std::string {
    switch (option.values) {
      case Values::words:
        if (option.is_list)
          return fmt::format(
              "compopt -o nospace; COMPREPLY=($(compgen -P \"${{cur%\"${{cur##*,}}\"}}\" -W {} -- \"${{cur##*,}}\")); "
              "return",
              quoted(joined_words(option.words)));
        return fmt::format("COMPREPLY=($(compgen -W {} -- \"$cur\")); return", quoted(joined_words(option.words)));
      case Values::runs:
        return "COMPREPLY=($(compgen -W \"$(_witan_runs)\" -- \"$cur\")); return";
      case Values::folders:
        return "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\")); return";
      case Values::files:
        return fmt::format("compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"){}); return",
                           option.words.empty()
                               ? ""
                               : fmt::format(" $(compgen -W {} -- \"$cur\")", quoted(joined_words(option.words))));
      default:
        return "return";
    }
  };
  std::string words;
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand& command) {
    words += fmt::format("    \"{}\") names={} flags={} ;;\n", path, quoted(joined_words(names_of(command))),
                         quoted(joined_words(flags_of_command(command))));
  });
  return fmt::format(
      "# Completion of witan for bash: source it, or put it into ~/.local/share/bash-completion/completions/witan.\n"
      "# Made by `witan completions bash`.\n"
      "_witan_runs() {{\n"
      "  local config\n"
      "  for config in runs/*/config.toml; do\n"
      "    [[ -f $config ]] && config=${{config%/config.toml}} && printf '%s\\n' \"${{config#runs/}}\"\n"
      "  done\n"
      "}}\n\n"
      "_witan() {{\n"
      "  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path= about= names= flags= start i\n"
      "  COMPREPLY=()\n"
      // With the default COMP_WORDBREAKS, --flag=value is three words.
      "  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi\n"
      // @FILE is two words as well, although the completion begins with the @.
      "  if [[ $cur == @* || $prev == @ ]]; then\n"
      "    cur=${{cur#@}}\n"
      "    COMPREPLY=($(compgen -P @ -f -- \"$cur\") $(compgen -P @ -W {} -- \"$cur\"))\n"
      "    for i in \"${{!COMPREPLY[@]}}\"; do [[ -d ${{COMPREPLY[i]#@}} ]] && COMPREPLY[i]+=/; done\n"
      "    [[ ${{COMPREPLY[*]}} == */ ]] && compopt -o nospace\n"
      "    return\n"
      "  fi\n"
      "{}"
      "  case \"$path:$prev\" in\n{}  esac\n"
      "  if [[ $cur != -* ]]; then\n"
      "    case $path in\n"
      "      {})\n{}        path=$about about=all ;;\n"
      "    esac\n"
      "  fi\n"
      "  case $path in\n{}  esac\n"
      "  if [[ $cur == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
      "  elif [[ -n $names || -n $about ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$names\" -- \"$cur\"))\n"
      "  else\n"
      "    case $path in\n{}"
      "    esac\n"
      "    compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))\n"
      "  fi\n"
      "}}\n"
      "complete -F _witan witan\n",
      quoted(response_files()),
      start_loop("COMP_WORDS", 1, "COMP_CWORD") + path_loop(app, "path", "COMP_WORDS", "start", "COMP_CWORD"),
      text_of_cases(value_cases(app, action)), commands_of_commands(app),
      path_loop(app, "about", "COMP_WORDS", "", "COMP_CWORD"), words, text_of_cases(argument_cases(app, action)));
}

std::string zsh_completions(const DescribedCommand& app) {
  const auto action = [](const DescribedOption& option) -> std::string {
    switch (option.values) {
      case Values::words:
        return option.is_list
                   ? fmt::format("compset -P '*,'; compadd -q -S , -- {}; return", joined_words(option.words))
                   : fmt::format("compadd -- {}; return", joined_words(option.words));
      case Values::runs:
        return "compadd -- runs/*/config.toml(N:h:t); return";
      case Values::folders:
        return "_files -/; return";
      case Values::files:
        return option.words.empty() ? "_files; return"
                                    : fmt::format("_files; compadd -- {}; return", joined_words(option.words));
      default:
        return "_message value; return";
    }
  };
  const auto described = [](const std::string& name, const std::string& meaning) {
    return quoted(name + ":" + first_sentence(meaning));
  };
  std::string words;
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand& command) {
    words += fmt::format("    \"{}\")\n      names=(", path);
    for (const DescribedCommand& one : command.commands) words += " " + described(one.name, one.summary);
    words += ")\n      flags=(";
    for (const DescribedOption& option : command.options)
      for (const std::string& name : option.names) words += " " + described(name, option.meaning);
    words += ")\n      ;;\n";
  });
  return fmt::format(
      "#compdef witan\n"
      "# Completion of witan for zsh: put it into a folder of $fpath as _witan. Made by `witan completions zsh`.\n"
      "_witan() {{\n"
      "  local cur=${{words[CURRENT]}} prev=${{words[CURRENT-1]}} path_= about= start i\n"
      "  local -a names flags\n"
      "  if [[ $cur == --*=* ]]; then prev=${{cur%%=*}} cur=${{cur#*=}}; compset -P '*='; fi\n"
      "  if compset -P @; then _files; compadd -- {}; return; fi\n"
      "{}"
      "  case \"$path_:$prev\" in\n{}  esac\n"
      "  if [[ $cur != -* ]]; then\n"
      "    case $path_ in\n"
      "      {})\n{}        path_=$about about=all ;;\n"
      "    esac\n"
      "  fi\n"
      "  case $path_ in\n{}  esac\n"
      "  if [[ $cur == -* ]]; then\n"
      "    _describe flag flags\n"
      "  elif [[ -n $about ]] || (( $#names )); then\n"
      "    _describe command names\n"
      "  else\n"
      "    case $path_ in\n{}"
      "    esac\n"
      "    _files\n"
      "  fi\n"
      "}}\n"
      "compdef _witan witan\n",
      // $path is the search path of zsh, tied to $PATH
      response_files(), start_loop("words", 2, "CURRENT") + path_loop(app, "path_", "words", "start", "CURRENT"),
      text_of_cases(value_cases(app, action)), commands_of_commands(app),
      path_loop(app, "about", "words", "", "CURRENT"), words, text_of_cases(argument_cases(app, action)));
}

std::string fish_completions(const DescribedCommand& app) {
  std::string out =
      "# Completion of witan for fish: put it into ~/.config/fish/completions/witan.fish. Made by `witan completions "
      "fish`.\n"
      // After the -- of `witan run … -- train …` the words are the command's. fish itself completes no flags there.
      "function __witan_words\n"
      "  set -l words (commandline -opc)[2..]\n"
      "  if test \"$words[1]\" = run; and set -l dashes (contains -i -- -- $words)\n"
      "    set -e words[1..$dashes]\n"
      "  end\n"
      "  printf '%s\\n' $words\n"
      "end\n"
      "function __witan_at\n"
      "  set -l words (__witan_words)\n"
      "  set -l path\n"
      "  for word in $words\n"
      "    contains -- \"$path $word\" $__witan_paths; or break\n"
      "    set path \"$path $word\"\n"
      "  end\n"
      "  test \"$path\" = \"$argv[1]\"\n"
      "end\n"
      // For `witan help data`: whether the words after `help` lead to this command.
      "function __witan_about\n"
      "  set -l words (commandline -opc)[2..]\n"
      "  contains -- \"$words[1]\" $argv[2..]; or return 1\n"
      "  test \"$(string join ' ' '' $words[2..])\" = \"$argv[1]\"\n"
      "end\n"
      "function __witan_runs\n"
      "  for config in runs/*/config.toml\n"
      "    basename (dirname $config)\n"
      "  end\n"
      "end\n"
      // In a list, the text before the last comma stays.
      "function __witan_list\n"
      "  set -l before (commandline -ct | string replace -r '^-[^=]*=' '' | string match -r '^.*,')\n"
      "  for word in $argv\n"
      "    echo \"$before$word\"\n"
      "  end\n"
      "end\n"
      "function __witan_at_files\n"
      "  string replace -r '^' @ -- $argv (__fish_complete_path (commandline -ct | string sub -s 2))\n"
      "end\n"
      "set -g __witan_paths";
  const auto at = [](const std::string& path) { return path.empty() ? std::string() : " " + path; };
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand&) {
    if (!path.empty()) out += " " + quoted(at(path));
  });
  out += "\ncomplete -c witan -n 'string match -q \"@*\" -- (commandline -ct)' -a " +
         quoted("(__witan_at_files " + response_files() + ")") + "\n";
  const auto value_of = [](const DescribedOption& option) -> std::string {
    if (option.type.empty()) return "";
    if (option.values == Values::words && option.is_list)
      return " -x -a " + quoted("(__witan_list " + joined_words(option.words) + ")");
    if (option.values == Values::words) return " -x -a " + quoted(joined_words(option.words));
    if (option.values == Values::runs) return " -x -a '(__witan_runs)'";
    if (option.values == Values::folders) return " -x -a '(__fish_complete_directories)'";
    if (option.values != Values::files) return " -x";
    return option.words.empty() ? " -r -F" : " -r -F -a " + quoted(joined_words(option.words));
  };
  for_each_command(app, "", [&](const std::string& path, const DescribedCommand& command) {
    const std::string head = "complete -c witan -n " + quoted("__witan_at \"" + at(path) + "\"");
    const std::string about = "complete -c witan -n " + quoted("__witan_about \"" + at(path) + "\" help man");
    for (const DescribedCommand& one : command.commands)
      for (const std::string& place : {head, about})
        out += fmt::format("{} -f -a {} -d {}\n", place, one.name, quoted(first_sentence(one.summary)));
    for (const DescribedOption& argument : command.arguments) {
      if (argument.values == Values::runs) out += head + " -f -a '(__witan_runs)'\n";
      if (argument.values == Values::words)
        out += fmt::format("{} -f -a {}\n", head, quoted(joined_words(argument.words)));
      if (argument.values == Values::commands) out += head + " -f\n";
    }
    for (const DescribedOption& option : command.options)
      for (const std::string& name : option.names)
        out += fmt::format("{} {}{}{} -d {}\n", head, name.starts_with("--") ? "-l " : "-s ",
                           name.substr(name.find_first_not_of('-')), value_of(option),
                           quoted(first_sentence(option.meaning)));
  });
  return out;
}

void add_completions(CLI::App& app, Context& context) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = add_command(
      app, context,
      {"completions", "Print a script that completes witan's commands and flags in a shell",
       "For bash, zsh or fish: commands, flags, their choices, also after a comma, presets, recipes for --config and "
       "@FILE, and the names of the runs in runs/.",
       "witan completions bash > completions.bash\nwitan completions zsh > _witan\nwitan completions fish > "
       "witan.fish"},
      [&app, &context, shell] {
        const DescribedCommand all = describe(app);
        const std::string script = *shell == "bash"  ? bash_completions(all)
                                   : *shell == "zsh" ? zsh_completions(all)
                                                     : fish_completions(all);
        fmt::print(context.out, "{}", script);
        return ExitCode::done;
      });
  add_option(*command, "shell", *shell, "bash, zsh or fish").one_of({"bash", "zsh", "fish"}).required();
}

}  // namespace witan::cli

// The commands, each in the file of its name. To add one: a line here, a line in commands.cpp, and its file.
#pragma once

#include <string_view>

#include "witan/cli/command.h"

namespace witan::cli {

void add_bench(CLI::App& app, Context& context);
void add_chat(CLI::App& app, Context& context);
void add_completions(CLI::App& app, Context& context);
void add_config(CLI::App& app, Context& context);
void add_data(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_eval(CLI::App& app, Context& context);
void add_export(CLI::App& app, Context& context);
void add_generate(CLI::App& app, Context& context);
void add_import(CLI::App& app, Context& context);
void add_man(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_replay(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);
void add_run(CLI::App& app, Context& context);
void add_runs(CLI::App& app, Context& context);
void add_serve(CLI::App& app, Context& context);
void add_tokenizer(CLI::App& app, Context& context);
void add_train(CLI::App& app, Context& context);
void add_watch(CLI::App& app, Context& context);

// All of them, in the order in which they are typically used.
void add_all(CLI::App& app, Context& context);

// The command of this name alone, if that is all that it takes to run it: to declare the flags of all takes several
// times as long as the rest of a program's start. All of them for a command that shows the others, and for any other
// word.
void add_what_runs(CLI::App& app, Context& context, std::string_view name);

}  // namespace witan::cli

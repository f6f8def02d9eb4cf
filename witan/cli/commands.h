// The commands, each in the file of its name. A new one: a line here, a line in commands.cpp, its file.
#pragma once

#include "witan/cli/command.h"

namespace witan::cli {

void add_bench(CLI::App& app, Context& context);
void add_data(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_eval(CLI::App& app, Context& context);
void add_generate(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);
void add_tokenizer(CLI::App& app, Context& context);
void add_train(CLI::App& app, Context& context);

// All of them, in the order of a user's day.
void add_all(CLI::App& app, Context& context);

}  // namespace witan::cli

#include "witan/cli/commands.h"

namespace witan::cli {

void add_all(CLI::App& app, Context& context) {
  add_doctor(app, context);
  add_data(app, context);
  add_tokenizer(app, context);
  add_import(app, context);
  add_config(app, context);
  add_plan(app, context);
  add_train(app, context);
  add_run(app, context);
  add_eval(app, context);
  add_generate(app, context);
  add_chat(app, context);
  add_serve(app, context);
  add_export(app, context);
  add_report(app, context);
  add_runs(app, context);
  add_watch(app, context);
  add_replay(app, context);
  add_bench(app, context);
  add_completions(app, context);
  add_man(app, context);
}

}  // namespace witan::cli

// witan data shuffle: shuffles the rows of a corpus of any size.
#include "witan/base/text.h"
#include "witan/cli/command.h"
#include "witan/cli/data/row_args.h"
#include "witan/data/rows/shuffle_rows.h"

namespace witan::cli {
namespace {

struct ShuffleArgs {
  RowArgs rows;
  ShuffleOptions options;
  WorkArgs work = {.memory = "2GB", .temporary = ""};
};

ExitCode shuffle(Context& context, const ShuffleArgs& args) {
  Progress progress(context.err, progress_options(context.err));
  const std::string command = "witan data shuffle";
  ShuffleOptions options = args.options;
  options.rows = args.rows.rows;
  options.memory = args.work.memory_bytes(command);
  options.temp = args.work.folder(command, {});
  options.workers = args.work.threads();
  const std::vector<Source> sources = sources_of(args.rows, command, progress);
  options.begins = [&](const ShuffleRoom& room) {
    progress.note(cat("disk: about ", format_bytes(static_cast<double>(room.runs)),
                      " for sorted runs, until the end, in ", room.runs_folder.string(), ", and ",
                      format_bytes(static_cast<double>(room.output)), " for the output in ",
                      room.output_folder.string()));
  };
  const InterruptNote interrupt = note_of_rows(args.rows.output);
  PhaseProgress phases(progress);
  const MadeRows made =
      shuffle_rows(sources, args.rows.output, options, [&](const RowProgress& at) { phases.update(at); });
  phases.end();
  progress.clear();
  print_rows(context.out, made);
  return ExitCode::done;
}

}  // namespace

void add_data_shuffle(CLI::App& data, Context& context) {
  const auto args = std::make_shared<ShuffleArgs>();
  CLI::App* command = add_command(
      data, context,
      {"shuffle", "Put the rows of a corpus into a random order, however large it is",
       "Rows of JSON Lines stay as they are, those of tables become JSON with all their columns, and plain text "
       "becomes "
       "rows, one a document. The output depends on the files, "
       "their order of names and the seed, not on workers or memory. After a kill the same command continues.",
       "witan data shuffle rows.jsonl.gz --output mixed.jsonl\n"
       "witan data shuffle rows.jsonl.zst corpus/ --output mixed/corpus --seed 42 --memory 2GB --chunks 4 --valid 2"},
      [&context, args] { return shuffle(context, *args); });
  add_selection_args(*command, args->rows.selection);
  add_row_args(*command, args->rows, "Write this file of JSON Lines, or with --chunks the files named after it");
  add_chunk_args(*command, args->options.parts);
  add_seed(*command, args->options.seed, "Seed of the order");
  add_work_args(*command, args->work, "Memory for rows, of all workers together",
                "Folder for sorted runs (default: beside the output)");
}

}  // namespace witan::cli

// witan data split: distributes the rows of a corpus over several files.
#include <cmath>
#include <cstdlib>

#include "witan/base/text.h"
#include "witan/cli/command.h"
#include "witan/cli/data/row_args.h"
#include "witan/data/rows/row_job.h"

namespace witan::cli {
namespace {

struct SplitArgs {
  RowArgs rows;
  CopyOptions options;
  std::string fractions;
};

// "0.98,0.01,0.01"
std::vector<double> parse_fractions(const std::string& text) {
  std::vector<double> fractions;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    char* rest = nullptr;
    fractions.push_back(std::strtod(word.c_str(), &rest));
    require<UsageError>(!word.empty() && *rest == '\0', "--fractions ", clipped(text), ": ", clipped(word),
                        " is not a number; give shares such as 0.98,0.01,0.01");
    begin = end + 1;
  }
  double sum = 0;
  for (const double fraction : fractions) sum += fraction;
  constexpr double kRounding = 1e-6;  // tolerance for shares written with a few digits
  require<UsageError>(fractions.empty() || std::abs(sum - 1) <= kRounding, "--fractions ", clipped(text),
                      ": the shares sum to ", sum, ", not to 1; to leave rows out, name a part for them, too");
  return fractions;
}

ExitCode split(Context& context, const SplitArgs& args) {
  Progress progress(context.err, progress_options(context.err));
  CopyOptions options = args.options;
  options.rows = args.rows.rows;
  options.parts.fractions = parse_fractions(args.fractions);
  require_files(args.rows, "witan data split");
  require<UsageError>(options.parts.chunks > 0 || options.parts.valid > 0 || !options.parts.fractions.empty(),
                      "witan data split: say how: --chunks N, --valid N, both, or --fractions LIST");
  const std::vector<Source> sources = sources_of(args.rows, "witan data split", progress);
  copy_and_print(context, progress, sources, args.rows.output, options);
  return ExitCode::done;
}

}  // namespace

void add_data_split(CLI::App& data, Context& context) {
  const auto args = std::make_shared<SplitArgs>();
  CLI::App* command = add_command(data, context,
                                  {"split", "Deal the rows of a corpus out to several files",
                                   "Rows keep their order within each file; shuffle them before. Rows of tables "
                                   "become JSON with all their columns."
                                   " After a kill the same command continues.",
                                   "witan data split rows.jsonl.gz --output parts/rows --chunks 4 --valid 2\n"
                                   "witan data split rows.jsonl.gz --output shares/rows --fractions 0.8,0.1,0.1"},
                                  [&context, args] { return split(context, *args); });
  add_selection_args(*command, args->rows.selection);
  add_row_args(*command, args->rows, "Name the files after this one: FILE.chunk.00.jsonl, FILE.val.jsonl");
  add_chunk_args(*command, args->options.parts);
  add_option(*command, "--fractions", args->fractions,
             "Assign each row to a random part, with these shares, which sum to 1: two are FILE.train.jsonl and "
             "FILE.val.jsonl, three have "
             "FILE.test.jsonl too, more are chunks")
      .type_name("LIST");
  add_seed(*command, args->options.parts.seed, "Seed of the draws of --fractions");
}

}  // namespace witan::cli

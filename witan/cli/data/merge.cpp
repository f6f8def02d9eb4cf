// witan data merge: joins several files of rows, or several token shards, into one.
#include <fmt/core.h>

#include <algorithm>

#include "witan/base/text.h"
#include "witan/cli/command.h"
#include "witan/cli/data/row_args.h"

#include "witan/data/rows/merge_indexed.h"
#include "witan/data/rows/row_job.h"

namespace witan::cli {
namespace {

struct MergeArgs {
  RowArgs rows;
};

// The token shards (.bin and .idx) that the arguments name, in their order; none if they name rows. Throws UsageError
// if they name both.
std::vector<fs::path> pairs_of(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> pairs;
  const fs::path *other = nullptr, *last = nullptr;
  for (const fs::path& input : inputs) {
    const fs::path prefix = indexed_prefix(input);
    require<DataError>(!prefix.empty() || fs::exists(input), "there is no file or folder ", input.string(),
                       ", and no pair ", input.string(), ".bin and .idx");
    const auto inside = fs::is_directory(input) ? indexed_prefixes_in(input) : std::vector<fs::path>();
    if (prefix.empty() && inside.empty()) other = &input;
    // PREFIX.bin and PREFIX.idx, to which a shell expands PREFIX.*, are one pair; a name given twice means the pair
    // twice.
    const bool same = last && !pairs.empty() && pairs.back() == prefix && *last != input;
    if (!prefix.empty() && !same) pairs.push_back(prefix);
    pairs.insert(pairs.end(), inside.begin(), inside.end());
    last = &input;
  }
  require<UsageError>(pairs.empty() || !other, "witan data merge: ", pairs.empty() ? "" : pairs.front().string(),
                      " is token shards (.bin and .idx) and ", other ? other->string() : "",
                      " is not: give one kind, and tokenize text with `witan data` before");
  return pairs;
}

ExitCode merge_pairs(Context& context, const std::vector<fs::path>& pairs, const fs::path& output) {
  require<UsageError>(output.has_filename() && !fs::is_directory(output), "witan data merge: --output ",
                      output.string(), " is a folder: give the prefix of the pair to write, ",
                      (output / "merged").string());
  Progress progress(context.err, progress_options(context.err));
  const InterruptNote interrupt("nothing was written; the same command starts over", InterruptNote::Ends::at_check);
  PhaseProgress phases(progress);
  const MergedIndexed merged = merge_indexed(pairs, output, [&](uint64_t done, uint64_t total) {
    interrupt.check();
    phases.update({"merging", done, total});
  });
  phases.end();
  progress.clear();
  fmt::print(context.out, "shards        {0}.bin, {0}.idx\ndocuments     {1}\ntokens        {2} ({3})\n",
             output.string(), merged.documents, merged.tokens, format_bytes(static_cast<double>(merged.bytes)));
  return ExitCode::done;
}

ExitCode merge(Context& context, const MergeArgs& args) {
  const std::vector<fs::path> inputs = paths_of(args.rows.inputs);
  const std::vector<fs::path> pairs = pairs_of(inputs);
  if (!pairs.empty()) {
    require<UsageError>(!args.rows.output.empty(),
                        "witan data merge: give the prefix of the pair to write: --output PREFIX");
    fs::path output = args.rows.output;
    if (output.extension() == ".bin" || output.extension() == ".idx") output.replace_extension();
    return merge_pairs(context, pairs, output);
  }
  Progress progress(context.err, progress_options(context.err));
  require<UsageError>(!inputs.empty(), "witan data merge: give files of rows, or token shards");
  std::vector<Source> sources;  // in the order of the arguments
  for (const fs::path& input : inputs) {
    RowArgs one = args.rows;
    one.inputs = {input.string()};
    const std::vector<Source> found = sources_of(one, "witan data merge", progress);
    sources.insert(sources.end(), found.begin(), found.end());
  }
  CopyOptions options;
  options.rows = args.rows.rows;
  copy_and_print(context, progress, sources, args.rows.output, options);
  return ExitCode::done;
}

}  // namespace

void add_data_merge(CLI::App& data, Context& context) {
  const auto args = std::make_shared<MergeArgs>();
  CLI::App* command = add_command(
      data, context,
      {"merge", "Join files of rows, or token shards, to one",
       "In the order of the arguments; a folder's files by name. Rows of tables become JSON with all their columns. "
       "Token shards (.bin and .idx) must have one type of "
       "tokens; the result is that of Megatron-LM's merge_datasets.py. After a kill the same command continues.",
       "witan data merge rows.jsonl.gz messages.jsonl --output merged.jsonl\n"
       "witan data merge data/my data/my --output data/twice"},
      [&context, args] { return merge(context, *args); });
  add_row_args(*command, args->rows, "Write this file of JSON Lines, or the pair FILE.bin and FILE.idx");
}

}  // namespace witan::cli

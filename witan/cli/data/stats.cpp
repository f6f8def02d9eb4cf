// witan data stats: counts documents, lengths, scripts and duplicates of a corpus or of token shards.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/files/output_file.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/data/row_args.h"
#include "witan/cli/data/shards.h"
#include "witan/cli/data/stats_page.h"
#include "witan/data/rows/work_folder.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {
namespace {

struct StatsArgs {
  std::vector<std::string> inputs;
  SourceSelection selection;
  std::string tokenizer, report;
  WorkArgs work = {.memory = "1GiB", .temporary = ""};
  bool json = false;
  StatisticsOptions options;
};

void print_lengths(std::FILE* out, const char* name, const LengthHistogram& lengths) {
  if (lengths.count() == 0) return;
  fmt::print(out, "{:<13}{:>14}{:>12.1f}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}\n", name, lengths.sum(), lengths.mean(),
             lengths.least(), lengths.quantile(0.1), lengths.quantile(0.5), lengths.quantile(0.9),
             lengths.quantile(0.99), lengths.most());
}

// The lengths of documents in tokens, if they are known, otherwise in bytes.
void print_bars(std::FILE* out, const DatasetStatistics& found) {
  const LengthHistogram& lengths = found.has_tokens ? found.tokens : found.bytes;
  constexpr int kWidest = 50;
  int64_t most = 1;
  for (const auto& bar : lengths.bars()) most = std::max(most, bar.count);
  fmt::print(out, "\n{:<25}documents\n", found.has_tokens ? "tokens of a document" : "bytes of a document");
  for (const auto& bar : lengths.bars()) {
    const auto width = static_cast<size_t>((bar.count * kWidest + most - 1) / most);
    fmt::print(out, "{:>10} to {:<10} {:>10} {}\n", bar.begin, bar.end - 1, bar.count, std::string(width, '#'));
  }
}

void print_scripts(std::FILE* out, const DatasetStatistics& found) {
  constexpr size_t kShown = 8;
  const auto scripts = scripts_by_size(found);
  int64_t letters = 0;
  for (const ScriptShare& script : scripts) letters += script.letters;
  std::string text;
  for (size_t i = 0; i < std::min(scripts.size(), kShown); ++i)
    text += cat(i == 0 ? "" : ", ", scripts[i].name, " ",
                share_of(static_cast<double>(scripts[i].letters), static_cast<double>(letters)));
  if (scripts.size() > kShown) text += cat(", and ", scripts.size() - kShown, " more");
  if (!text.empty()) fmt::print(out, "scripts       {} of letters\n", text);
}

void print_frequent(std::FILE* out, const DatasetStatistics& found, const StatsSubject& subject) {
  constexpr size_t kShown = 10;
  const auto tokens = tokens_by_count(found);
  if (subject.tokenizer)
    fmt::print(out, "vocabulary    {} of {} tokens occur\n", tokens.size(), found.token_counts.size());
  std::string text;
  for (size_t i = 0; i < std::min(tokens.size(), kShown); ++i)
    text += cat(i == 0 ? "" : ", ",
                subject.tokenizer ? cat("\"", clipped(subject.tokenizer->token_bytes(tokens[i].id), 24), "\"")
                                  : std::to_string(tokens[i].id),
                " ", share_of(static_cast<double>(tokens[i].count), static_cast<double>(found.tokens.sum())));
  if (!text.empty()) fmt::print(out, "frequent      {}\n", text);
}

void print_dataset(std::FILE* out, const DatasetStatistics& found, const StatsSubject& subject) {
  const CorpusStatistics& corpus = found.corpus;
  fmt::print(out, "documents     {}{}\n", found.documents,
             corpus.empty_documents > 0 ? cat("; skipped ", counted(corpus.empty_documents, "empty document")) : "");
  if (found.parts.size() > 1) fmt::print(out, "files         {}\n", found.parts.size());
  if (found.has_text) fmt::print(out, "text          {}\n", format_bytes(static_cast<double>(found.bytes.sum())));
  if (found.has_text && found.has_tokens)
    fmt::print(out, "compression   {:.3f} bytes per token\n",
               static_cast<double>(found.bytes.sum()) / static_cast<double>(std::max<int64_t>(found.tokens.sum(), 1)));
  const int64_t size = found.has_text ? found.bytes.sum() : found.tokens.sum();
  fmt::print(out, "duplicates    {} ({}), {} of the {}\n", counted(found.duplicate_documents, "document"),
             share_of(static_cast<double>(found.duplicate_documents), static_cast<double>(found.documents)),
             share_of(static_cast<double>(found.duplicate_size), static_cast<double>(size)),
             found.has_text ? "text" : "tokens");
  if (found.has_text)
    fmt::print(out, "repetition    {} ({}) above a limit of Gopher's\n",
               counted(found.repetitive_documents, "document"),
               share_of(static_cast<double>(found.repetitive_documents), static_cast<double>(found.documents)));
  print_scripts(out, found);
  if (found.has_tokens) print_frequent(out, found, subject);
  fmt::print(out, "\n{:<13}{:>14}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}\n", "per document", "total", "mean",
             "least", "10 %", "median", "90 %", "99 %", "most");
  print_lengths(out, "bytes", found.bytes);
  print_lengths(out, "characters", found.characters);
  print_lengths(out, "words", found.words);
  print_lengths(out, "tokens", found.tokens);
  print_bars(out, found);
}

DatasetStatistics count_text(const StatsArgs& args, const StatisticsOptions& options, Progress& progress) {
  const Sources sources = find_sources(paths_of(args.inputs), args.selection);
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  check_encoding(sources.files, options.corpus);
  uint64_t total = 1;
  for (const Source& source : sources.files) total += source.bytes;
  TaskProgress counting(progress, "counting", static_cast<double>(total), "B");
  return text_statistics(sources.files, options,
                         [&](uint64_t done, uint64_t) { counting.update(static_cast<double>(done)); });
}

DatasetStatistics count_tokens(const StatsArgs& args, const StatisticsOptions& options, Progress& progress) {
  const std::optional<int32_t> end = options.tokenizer ? options.tokenizer->end_of_text() : std::nullopt;
  const auto data = open_tokens(args.inputs.front(), end);
  TaskProgress counting(progress, "counting", static_cast<double>(std::max<int64_t>(data->tokens(), 1)), "tokens");
  return token_statistics(*data, options, [&](uint64_t done, uint64_t) { counting.update(static_cast<double>(done)); });
}

constexpr const char* kStatsCommand = "witan data stats";

OutputFile page_of(const StatsArgs& args) {
  return {args.report, cat(kStatsCommand, ": --report"), "page",
          [](std::string_view bytes) { return bytes.find(kStatsTitle) != std::string_view::npos; }};
}

// Throws before hours of counting for arguments that would fail.
void check_report(const StatsArgs& args) {
  if (args.report.empty()) return;
  const OutputFile page = page_of(args);
  page.require_free();
  make_folder(page.path.has_parent_path() ? page.path.parent_path() : ".");
}

ExitCode stats(Context& context, const StatsArgs& args) {
  const bool shards = std::any_of(args.inputs.begin(), args.inputs.end(), names_shards);
  require<UsageError>(!shards || args.inputs.size() == 1,
                      "witan data stats: give one prefix of token shards, or any number of files of text");
  require<UsageError>(!shards || args.selection == SourceSelection(),
                      "witan data stats: --include and --exclude choose files of a folder of text, and ",
                      args.inputs.front(), " are token shards: leave them out");
  check_report(args);
  StatisticsOptions options = args.options;
  options.memory = args.work.memory_bytes(kStatsCommand);
  options.temporary = args.work.folder(kStatsCommand, fs::temp_directory_path());
  options.threads = args.work.threads();
  StatsSubject subject{fmt::format("{}", fmt::join(args.inputs, ", ")), nullptr, args.tokenizer};
  if (shards) {
    if (auto found = tokenizer_of_shards(args.inputs.front(), args.tokenizer, context.err))
      subject.tokenizer = std::make_shared<const Tokenizer>(std::move(*found));
    if (args.tokenizer.empty()) subject.tokenizer_name = prefix_of_shards(args.inputs.front()) + ".tokenizer.json";
  } else if (!args.tokenizer.empty()) {
    subject.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(args.tokenizer));
  }
  options.tokenizer = subject.tokenizer;
  Progress progress(context.err, progress_options(context.err));
  const InterruptNote interrupt("nothing was written; the same command starts over");
  const DatasetStatistics found = shards ? count_tokens(args, options, progress) : count_text(args, options, progress);
  progress.clear();
  for (const std::string& loss : describe_losses(found.corpus)) progress.note("warning: " + loss);
  if (args.json)
    fmt::print(context.out, "{}\n",
               stats_json(found, subject).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    print_dataset(context.out, found, subject);
  if (shards && !subject.tokenizer)
    fmt::print(context.err, "give --tokenizer FILE to count text, words and scripts, too\n");
  if (!args.report.empty()) {
    page_of(args).write(stats_page(found, subject));
    fmt::print(context.err, "report        {}\n", args.report);
  }
  return ExitCode::done;
}

}  // namespace

void add_data_stats(CLI::App& data, Context& context) {
  const auto args = std::make_shared<StatsArgs>();
  CLI::App* command =
      add_command(data, context,
                  {"stats", "Count documents, lengths, scripts, duplicates and tokens of text or token shards",
                   "Words are runs of letters and digits; in scripts without spaces between words each character is "
                   "one. Duplicates are documents that are equal but for white space; `witan data dedup` finds near "
                   "ones, too. Quantiles of lengths from 256 on are rounded down by less than 1 %.",
                   "witan data stats rows.jsonl.zst\n"
                   "witan data stats corpus/ my.txt --tokenizer tokenizer.json --report stats.html\n"
                   "witan data stats data/my --json"},
                  [&context, args] { return stats(context, *args); });
  add_option(*command, "inputs", args->inputs, std::string(kInputsHelp) + "; or a prefix of token shards")
      .required()
      .type_name("");
  add_selection_args(*command, args->selection);
  add_option(*command, "--tokenizer", args->tokenizer,
             "Count tokens of text, or text of tokens (default for shards: PREFIX.tokenizer.json)")
      .type_name("FILE");
  add_option(*command, "--report", args->report, "Write a page with pictures to this file, STATS.html")
      .type_name("FILE");
  add_flag(*command, "--json", args->json, "Print JSON");
  add_work_args(*command, args->work, "Memory for hashes of documents; more of them are sorted on disk",
                "Folder for data that does not fit into memory (default: $TMPDIR or /tmp)");
  add_text_args(*command, args->options.corpus);
}

}  // namespace witan::cli

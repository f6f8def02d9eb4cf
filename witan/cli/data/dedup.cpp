// witan data dedup: a corpus without its duplicates.
#include "witan/data/dedup/dedup.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/counted.h"
#include "witan/base/text.h"
#include "witan/base/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/text_args.h"
#include "witan/cli/data/shards.h"
#include "witan/cli/data/subcommands.h"
#include "witan/report/progress.h"

namespace witan::cli {
namespace {

struct DedupArgs {
  std::vector<std::string> inputs;
  std::string output, removed, method = "minhash", normalize = "space", shingle = "words", memory = "2GiB", temporary;
  double verify = 0;
  int workers = 0;
  bool dry_run = false, json = false;
  DedupOptions options;
};

// The folder of a file that is to be written, as a path that can be opened.
fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

fs::path temporary_folder(const DedupArgs& args) {
  if (!args.temporary.empty()) return args.temporary;
  return args.output.empty() ? fs::temp_directory_path() : folder_of(args.output);
}

// PREFIX.removed.jsonl of PREFIX.jsonl.
std::string list_beside(const std::string& output) {
  return (output.ends_with(".jsonl") ? output.substr(0, output.size() - 6) : output) + ".removed.jsonl";
}

DedupOptions dedup_options(const DedupArgs& args) {
  DedupOptions options = args.options;
  DuplicateOptions& duplicates = options.duplicates;
  duplicates.near = args.method == "minhash";
  duplicates.normalization = args.normalize == "none"    ? Normalization::none
                             : args.normalize == "words" ? Normalization::words
                                                         : Normalization::space;
  duplicates.shingles.unit = args.shingle == "words" ? ShingleUnit::words : ShingleUnit::characters;
  if (args.verify > 0) duplicates.least_similarity = args.verify;
  duplicates.memory = parse_bytes(args.memory);
  duplicates.temporary = temporary_folder(args);
  options.threads = args.workers > 0 ? args.workers : usable_cores();
  if (!args.dry_run) options.kept = args.output;
  options.removed = !args.removed.empty() ? args.removed : args.dry_run ? "" : list_beside(args.output);
  if (!args.dry_run) options.corpus.quarantine = args.output + ".quarantine.jsonl";
  return options;
}

void check_outputs(const DedupOptions& options, const std::vector<Source>& sources) {
  require<UsageError>(options.kept.empty() || options.kept.lexically_normal() != options.removed.lexically_normal(),
                      "witan data dedup: --output and --removed are both ", options.kept.string(), ": name two files");
  for (const fs::path& path : {options.kept, options.removed}) {
    if (path.empty()) continue;
    require<UsageError>(path.extension() != ".gz" && path.extension() != ".zst", "witan data dedup: ", path.string(),
                        " would be written without compression: name a .jsonl file, and compress it afterwards");
    std::error_code none;
    for (const Source& source : sources)
      require<UsageError>(!fs::equivalent(path, source.path, none), "witan data dedup: ", path.string(),
                          " is one of the inputs: name another file");
  }
}

double dedup_percent(double part, double all) {
  return 100 * part / std::max(all, 1.0);
}

void print_dedup(std::FILE* out, const DedupResult& result, const DedupOptions& options) {
  const auto documents = static_cast<double>(result.corpus.documents),
             bytes = static_cast<double>(result.corpus.text_bytes);
  const auto print_part = [&](const char* name, int64_t count, uint64_t size) {
    fmt::print(out, "{:<13} {} ({:.2f} %), {} ({:.2f} %)\n", name, counted(count, "document"),
               dedup_percent(static_cast<double>(count), documents), format_bytes(static_cast<double>(size)),
               dedup_percent(static_cast<double>(size), bytes));
  };
  const int64_t removed = result.exact + result.near;
  const uint64_t removed_bytes = result.exact_bytes + result.near_bytes;
  print_part("read", result.corpus.documents, result.corpus.text_bytes);
  print_part("exact copies", result.exact, result.exact_bytes);
  const DuplicateOptions& duplicates = options.duplicates;
  if (duplicates.near) {
    print_part("near copies", result.near, result.near_bytes);
    fmt::print(out, "candidates    {} bands of {} rows: 50 % of pairs with a Jaccard similarity of {:.2f} are found\n",
               duplicates.bands.bands, duplicates.bands.rows, similarity_of_even_chance(duplicates.bands));
    fmt::print(out, "              (");
    static constexpr double kSimilarities[] = {0.6, 0.7, 0.8, 0.9};
    for (const double similarity : kSimilarities)
      fmt::print(out, "{}{:.1f} % at {:.1f}", similarity > 0.6 ? ", " : "",
                 100 * candidate_probability(similarity, duplicates.bands), similarity);
    fmt::print(out, ")\n");
  }
  if (duplicates.least_similarity)
    fmt::print(out, "verified      {} compared, {} below {:g}\n", counted(result.verified_pairs, "pair"),
               result.rejected_pairs, *duplicates.least_similarity);
  fmt::print(out, "clusters      {}\n", result.clusters);
  print_part("kept", result.corpus.documents - removed, result.corpus.text_bytes - removed_bytes);
  if (!options.kept.empty()) fmt::print(out, "written       {}\n", options.kept.string());
  if (!options.removed.empty()) fmt::print(out, "removed list  {}\n", options.removed.string());
}

void print_dedup_json(std::FILE* out, const DedupResult& result, const DedupOptions& options) {
  nlohmann::ordered_json json = {{"documents", result.corpus.documents},
                                 {"bytes", result.corpus.text_bytes},
                                 {"exact", result.exact},
                                 {"exact_bytes", result.exact_bytes},
                                 {"near", result.near},
                                 {"near_bytes", result.near_bytes},
                                 {"clusters", result.clusters},
                                 {"kept", result.corpus.documents - result.exact - result.near},
                                 {"kept_bytes", result.corpus.text_bytes - result.exact_bytes - result.near_bytes},
                                 {"verified_pairs", result.verified_pairs},
                                 {"rejected_pairs", result.rejected_pairs},
                                 {"empty_documents", result.corpus.empty_documents},
                                 {"rows", result.corpus.rows},
                                 {"bad_rows", result.corpus.bad_rows},
                                 {"spilled_bytes", result.spilled}};
  json["output"] = nullptr;
  json["removed"] = nullptr;
  if (!options.kept.empty()) json["output"] = options.kept.string();
  if (!options.removed.empty()) json["removed"] = options.removed.string();
  fmt::print(out, "{}\n", json.dump(2));
}

// One line of progress for each reading of the sources.
class DedupPhases {
 public:
  explicit DedupPhases(Progress& progress) : progress_(progress) {}

  void update(const DedupProgress& at) {
    static constexpr const char* kNames[] = {"hashing", "comparing", "writing"};
    if (!task_ || at.phase != phase_)
      task_.emplace(progress_, kNames[static_cast<size_t>(at.phase)],
                    static_cast<double>(std::max<uint64_t>(at.total_source_bytes, 1)), "B");
    phase_ = at.phase;
    task_->update(static_cast<double>(at.source_bytes));
  }

 private:
  Progress& progress_;
  DedupPhase phase_{};
  std::optional<TaskProgress> task_;
};

ExitCode dedup(Context& context, const DedupArgs& args) {
  require<UsageError>(args.dry_run || !args.output.empty(),
                      "witan data dedup: give the file to write, --output FILE.jsonl, or only count with --dry-run");
  for (const std::string& input : args.inputs)
    require<UsageError>(!names_shards(input), "witan data dedup: ", input,
                        " is token shards: give the text that they were made from, and tokenize what is kept");
  require<UsageError>(args.verify == 0 || args.method == "minhash",
                      "witan data dedup: --verify compares candidates of --method minhash, and --method exact has "
                      "none: leave one of them out");
  Progress progress(context.err, progress_options(context.err));
  const Sources sources = find_sources(paths_of(args.inputs));
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  const DedupOptions options = dedup_options(args);
  check_outputs(options, sources.files);
  if (!options.kept.empty()) fs::create_directories(folder_of(options.kept));
  if (!options.removed.empty()) fs::create_directories(folder_of(options.removed));
  check_encoding(sources.files, options.corpus);
  DedupResult result;
  {
    DedupPhases phases(progress);
    result = dedup_corpus(sources.files, options, [&](const DedupProgress& at) { phases.update(at); });
  }
  progress.clear();
  for (const std::string& loss : describe_losses(result.corpus)) progress.note("warning: " + loss);
  if (args.json)
    print_dedup_json(context.out, result, options);
  else
    print_dedup(context.out, result, options);
  return ExitCode::done;
}

void add_minhash_args(CLI::App& command, DedupArgs& args) {
  DuplicateOptions& duplicates = args.options.duplicates;
  const auto minhash = [](Option option) { return option.group("MinHash"); };
  minhash(add_option(command, "--shingle", args.shingle, "What shingles are made of")
              .one_of({"words", "characters"})
              .show_default());
  minhash(add_option(command, "--ngram", duplicates.shingles.length, "Words or characters of a shingle")
              .type_name("N")
              .show_default());
  minhash(add_option(command, "--bands", duplicates.bands.bands, "Bands of a signature: more of them find more pairs")
              .type_name("N")
              .show_default());
  minhash(add_option(command, "--rows", duplicates.bands.rows,
                     "Rows of a band: more of them find pairs of a higher similarity")
              .type_name("N")
              .show_default());
  minhash(
      add_option(command, "--seed", duplicates.bands.seed, "Seed of the hash functions").type_name("N").show_default());
  minhash(add_option(command, "--verify", args.verify,
                     "Compare the shingles of candidates, and remove those with at least this Jaccard similarity "
                     "(default: all candidates are removed)")
              .type_name("SHARE")
              .range(0.0, 1.0));
}

}  // namespace

void add_data_dedup(CLI::App& data, Context& context) {
  const auto args = std::make_shared<DedupArgs>();
  CLI::App* command = add_command(
      data, context,
      {"dedup", "Remove exact and near duplicates from text",
       "Writes rows of JSON Lines, byte for byte and in the order of the sources. Of each cluster of\n"
       "duplicates the first stays. Workers and memory do not change the result.",
       "witan data dedup rows.jsonl.zst --output clean.jsonl\n"
       "witan data dedup corpus/ rows.jsonl.gz --method exact --normalize words --output clean.jsonl\n"
       "witan data dedup rows.jsonl.zst --json-key content --bands 20 --rows 5 --verify 0.7 --output clean.jsonl\n"
       "witan data dedup my.txt other.txt --dry-run"},
      [&context, args] { return dedup(context, *args); });
  add_option(*command, "inputs", args->inputs, "Files and folders of text or JSON Lines, separated by spaces or commas")
      .required()
      .type_name("");
  add_option(*command, "--output", args->output, "Write the documents that are kept to this file").type_name("FILE");
  add_option(*command, "--removed", args->removed,
             "List removed documents, each with the one kept for it, in this file (default: beside the output, "
             "NAME.removed.jsonl)")
      .type_name("FILE");
  add_flag(*command, "--dry-run", args->dry_run, "Only count, in one reading; with --removed also list");
  add_option(*command, "--method", args->method, "minhash finds near duplicates and exact ones, exact only the latter")
      .one_of({"minhash", "exact"})
      .show_default();
  add_option(*command, "--normalize", args->normalize,
             "What exact copies may differ in: nothing (none), white space (space), or all but the letters and digits "
             "of their words (words)")
      .one_of({"none", "space", "words"})
      .show_default();
  add_option(*command, "--memory", args->memory, "Memory for hashes; more of them are sorted on disk")
      .type_name("SIZE")
      .show_default();
  add_option(*command, "--temporary", args->temporary, "Folder for what does not fit (default: that of the output)")
      .type_name("FOLDER");
  add_option(*command, "--workers", args->workers, "Threads (default: all cores)").type_name("N").range(1, 4096);
  add_flag(*command, "--json", args->json, "Print the counts as JSON");
  add_minhash_args(*command, *args);
  add_text_args(*command, args->options.corpus);
}

}  // namespace witan::cli

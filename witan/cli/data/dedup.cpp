// witan data dedup: removes duplicates from a corpus.
#include "witan/data/dedup/dedup.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/data/row_args.h"
#include "witan/cli/data/shards.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/data/rows/made_record.h"
#include "witan/data/rows/row_reader.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {
namespace {

struct DedupArgs {
  std::vector<std::string> inputs;
  SourceSelection selection;
  std::string output, removed, method = "minhash", normalize = "space", shingle = "words";
  WorkArgs work = {.memory = "2GiB", .temporary = ""};
  double verify = 0;
  bool dry_run = false, json = false;
  DedupOptions options;
};

// The folder of an output file, as a path that can be opened.
fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

constexpr const char* kDedupCommand = "witan data dedup";

DedupOptions dedup_options(const DedupArgs& args) {
  DedupOptions options = args.options;
  DuplicateOptions& duplicates = options.duplicates;
  duplicates.near = args.method == "minhash";
  duplicates.normalization = args.normalize == "none"    ? Normalization::none
                             : args.normalize == "words" ? Normalization::words
                                                         : Normalization::space;
  duplicates.shingles.unit = args.shingle == "words" ? ShingleUnit::words : ShingleUnit::characters;
  if (args.verify > 0) duplicates.least_similarity = args.verify;
  if (!args.dry_run) {
    options.kept = output_of_rows(args.output, cat(kDedupCommand, ": --output"));
    options.corpus.quarantine = quarantine_beside(options.kept);
  }
  options.removed = !args.removed.empty() ? args.removed
                    : args.dry_run        ? ""
                                          : stem_of_rows(options.kept) + ".removed.jsonl";
  duplicates.memory = args.work.memory_bytes(kDedupCommand);
  const fs::path beside = options.kept.empty() ? fs::temp_directory_path() : folder_of(options.kept);
  duplicates.temporary = args.work.folder(kDedupCommand, beside);
  options.threads = args.work.threads();
  return options;
}

void check_outputs(const DedupOptions& options, const std::vector<Source>& sources) {
  require<UsageError>(options.kept.empty() || options.kept.lexically_normal() != options.removed.lexically_normal(),
                      "witan data dedup: --output and --removed are both ", options.kept.string(), ": name two files");
  if (!options.removed.empty()) output_of_rows(options.removed.string(), cat(kDedupCommand, ": --removed"));
  require_no_source({options.kept, options.removed, options.corpus.quarantine}, sources);
}

double dedup_percent(double part, double all) {
  return 100 * part / std::max(all, 1.0);
}

void print_dedup(std::FILE* out, const DedupResult& result, const DedupOptions& options, bool reused) {
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
  if (!options.kept.empty())
    fmt::print(out, "written       {}{}\n", options.kept.string(), reused ? " (made before)" : "");
  if (!options.removed.empty()) fmt::print(out, "removed list  {}\n", options.removed.string());
}

nlohmann::ordered_json counts_of(const DedupResult& result) {
  return {{"documents", result.corpus.documents},
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
}

// Reads the counts that counts_of() wrote, from an earlier call's record.
DedupResult result_of(const nlohmann::json& counts) {
  DedupResult result;
  counts.at("documents").get_to(result.corpus.documents);
  counts.at("bytes").get_to(result.corpus.text_bytes);
  counts.at("exact").get_to(result.exact);
  counts.at("exact_bytes").get_to(result.exact_bytes);
  counts.at("near").get_to(result.near);
  counts.at("near_bytes").get_to(result.near_bytes);
  counts.at("clusters").get_to(result.clusters);
  counts.at("verified_pairs").get_to(result.verified_pairs);
  counts.at("rejected_pairs").get_to(result.rejected_pairs);
  counts.at("empty_documents").get_to(result.corpus.empty_documents);
  counts.at("rows").get_to(result.corpus.rows);
  counts.at("bad_rows").get_to(result.corpus.bad_rows);
  counts.at("spilled_bytes").get_to(result.spilled);
  return result;
}

void print_dedup_json(std::FILE* out, const DedupResult& result, const DedupOptions& options) {
  nlohmann::ordered_json json = counts_of(result);
  json["output"] = nullptr;
  json["removed"] = nullptr;
  if (!options.kept.empty()) json["output"] = options.kept.string();
  if (!options.removed.empty()) json["removed"] = options.removed.string();
  fmt::print(out, "{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

// Identifies the call: everything that the result depends on.
nlohmann::json dedup_key(const std::vector<Source>& sources, const DedupOptions& options, const DedupArgs& args) {
  const DuplicateOptions& duplicates = options.duplicates;
  nlohmann::json key = {
      {"sources", sources_key(sources)}, {"options", options_key(options.corpus)},
      {"method", args.method},           {"normalize", args.normalize},
      {"kept", !args.dry_run},           {"removed", replace_invalid_utf8(fs::absolute(options.removed).string())}};
  if (duplicates.near)
    key["minhash"] = {{"shingle", args.shingle},         {"ngram", duplicates.shingles.length},
                      {"bands", duplicates.bands.bands}, {"rows", duplicates.bands.rows},
                      {"seed", duplicates.bands.seed},   {"verify", args.verify}};
  return key;
}

// Prints one line of progress for each pass over the sources.
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

struct MadeDedup {
  DedupResult result;
  bool reused = false;
};

MadeDedup make_dedup(const std::vector<Source>& sources, const DedupOptions& options, Progress& progress) {
  for (const fs::path& path : {options.kept, options.removed})
    if (!path.empty()) make_folder(folder_of(path));
  const InterruptNote interrupt("nothing was written; the same command starts over", InterruptNote::Ends::at_check);
  DedupPhases phases(progress);
  return {dedup_corpus(sources, options, [&](const DedupProgress& at) {
    interrupt.check();
    phases.update(at);
  })};
}

// Removes the duplicates, unless an earlier call has done the same work: then returns its result. Throws if an output
// would overwrite a file of other content.
MadeDedup find_or_make(const std::vector<Source>& sources, const DedupOptions& options, const DedupArgs& args,
                       Progress& progress) {
  const fs::path& output = options.kept.empty() ? options.removed : options.kept;
  if (output.empty()) return make_dedup(sources, options, progress);
  const MadeRecord record(output);
  const nlohmann::json key = dedup_key(sources, options, args);
  std::vector<fs::path> outputs, beside;
  for (const fs::path& path : {options.kept, options.removed})
    if (!path.empty()) outputs.push_back(path);
  if (const fs::path& quarantine = options.corpus.quarantine; !quarantine.empty()) beside.push_back(quarantine);
  if (const nlohmann::json counts = record.find(key); counts.is_object()) return {result_of(counts), true};
  std::vector<fs::path> lists = beside;
  if (output != options.removed) lists.push_back(options.removed);
  record.require_free({output}, lists);
  try {
    MadeDedup made = make_dedup(sources, options, progress);
    record.write(key, counts_of(made.result), outputs, beside);
    return made;
  } catch (const DataError&) {
    const bool listed = !beside.empty() && fs::exists(beside.front());
    if (listed) record.write(nullptr, nullptr, {}, beside);  // keeps the list of unusable rows, which the message names
    throw;
  } catch (...) {
    for (const fs::path& list : beside) fs::remove(list);
    throw;
  }
}

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
  const Sources sources = find_sources(paths_of(args.inputs), args.selection);
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  const DedupOptions options = dedup_options(args);
  check_outputs(options, sources.files);
  check_encoding(sources.files, options.corpus);
  if (!options.kept.empty())
    for (const std::string& note : columns_left_out(sources.files)) progress.note("warning: " + note);
  const auto [result, reused] = find_or_make(sources.files, options, args, progress);
  progress.clear();
  for (const std::string& loss : describe_losses(result.corpus)) progress.note("warning: " + loss);
  if (args.json)
    print_dedup_json(context.out, result, options);
  else
    print_dedup(context.out, result, options, reused);
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
  minhash(
      add_option(command, "--rows", duplicates.bands.rows, "Rows of a band: more rows find pairs of higher similarity")
          .type_name("N")
          .show_default());
  minhash(add_seed(command, duplicates.bands.seed, "Seed of the hash functions"));
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
       "Writes rows of JSON Lines byte for byte, those of tables as JSON with all their columns, in the order of the "
       "sources. Of each cluster of duplicates the first stays. Workers and memory do not change the result.",
       "witan data dedup rows.jsonl.zst --output clean.jsonl\n"
       "witan data dedup corpus/ rows.jsonl.gz --method exact --normalize words --output words.jsonl\n"
       "witan data dedup rows.jsonl.zst --json-key content --bands 20 --rows 5 --verify 0.7 --output contents.jsonl\n"
       "witan data dedup my.txt other.txt --dry-run"},
      [&context, args] { return dedup(context, *args); });
  add_option(*command, "inputs", args->inputs, kInputsHelp).required().type_name("");
  add_selection_args(*command, args->selection);
  add_option(*command, "--output", args->output, "Write the documents that are kept to this file of JSON Lines")
      .type_name("FILE");
  add_option(*command, "--removed", args->removed,
             "List removed documents, each with the one kept for it, in this file (default: beside the output, "
             "NAME.removed.jsonl)")
      .type_name("FILE");
  add_flag(*command, "--dry-run", args->dry_run, "Only count, in one reading; with --removed also list");
  add_option(*command, "--method", args->method, "minhash finds near duplicates and exact ones, exact only the latter")
      .one_of({"minhash", "exact"})
      .show_default();
  add_option(
      *command, "--normalize", args->normalize,
      "What exact copies may differ in: nothing (none), white space (space), or everything except letters and digits "
      "of their words (words)")
      .one_of({"none", "space", "words"})
      .show_default();
  add_work_args(*command, args->work, "Memory for hashes; more of them are sorted on disk",
                "Folder for data that does not fit into memory (default: that of the output)");
  add_flag(*command, "--json", args->json, "Print the counts as JSON");
  add_minhash_args(*command, *args);
  add_text_args(*command, args->options.corpus);
}

}  // namespace witan::cli

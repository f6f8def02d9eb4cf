#include "witan/fetch/fetch.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/data/interrupt.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {
namespace {

struct FetchArgs {
  fetch::FetchOptions fetch;
  std::string name, preset, to;
  bool model = false, list = false;
};

// The default output folder.
fs::path usual_folder(const FetchArgs& args, const fetch::Repository& repository) {
  if (!args.preset.empty()) return fs::path("data") / args.preset;
  const std::string name = repository.name.substr(repository.name.rfind('/') + 1);
  return fs::path(repository.kind == fetch::RepositoryKind::model ? "models" : "data") / name;
}

// Throws UsageError for flags that contradict each other.
void check_fetch_flags(const FetchArgs& args) {
  const auto refuse = [](bool both, const auto&... why) { require<UsageError>(!both, "witan data fetch: ", why...); };
  refuse(args.name.empty() && args.preset.empty(), "give the name of a dataset, as OWNER/NAME, or --preset NAME");
  refuse(!args.name.empty() && !args.preset.empty(), "--preset ", args.preset,
         " names a repository, and so does the argument ", clipped(args.name), ": leave one of them out");
  refuse(args.model && !args.preset.empty(), "--preset ", args.preset,
         " names a dataset, and --model asks for a model: leave one of them out");
  refuse(args.model && !args.fetch.subset.empty(), "--subset ", clipped(args.fetch.subset),
         " is of a dataset's card, and --model asks for a model: choose files of a model with --include PATTERN");
  refuse(args.list && args.fetch.verify,
         "--list only lists, and --verify compares what is fetched: leave one of them out");
}

void check_against_preset(const FetchArgs& args, const fetch::FetchPreset& preset) {
  const std::string by_name = cat("`witan data fetch ", preset.repository);
  require<UsageError>(args.fetch.subset.empty() || preset.subset == args.fetch.subset, "witan data fetch: --preset ",
                      preset.name, preset.subset.empty() ? " is no subset" : " is the subset ", preset.subset,
                      ", and --subset is ", clipped(args.fetch.subset), ": leave one of them out, or give ", by_name,
                      " --subset ", shell_word(args.fetch.subset), "`");
  require<UsageError>(args.fetch.include.empty() || preset.include.empty(), "witan data fetch: --preset ", preset.name,
                      " has its own patterns of files, and --include gives others: leave one of them out, or give ",
                      by_name, " --include PATTERN`");
}

// Refuses names without an owner, which old repositories have: the hub redirects them to another address.
void check_owner(const fetch::Repository& repository) {
  std::vector<std::string> presets;
  for (const fetch::FetchPreset& preset : fetch::fetch_presets()) presets.push_back(preset.name);
  const std::string preset = nearest(repository.name, presets);
  require<UsageError>(repository.name.find('/') != std::string::npos, "witan data fetch: ", clipped(repository.name),
                      " has no owner: give OWNER/NAME, as on the ", fetch::kind_name(repository.kind), "'s page",
                      preset.empty() ? "" : "; or did you mean --preset " + preset + "?");
}

fetch::FetchOptions fetch_options(const FetchArgs& args) {
  check_fetch_flags(args);
  fetch::FetchOptions options = args.fetch;
  options.repository.kind = args.model ? fetch::RepositoryKind::model : fetch::RepositoryKind::dataset;
  options.repository.name = args.name;
  if (!args.preset.empty()) {
    const fetch::FetchPreset& preset = fetch::fetch_preset(args.preset);
    check_against_preset(args, preset);
    options.repository.name = preset.repository;
    if (options.subset.empty()) options.subset = preset.subset;
    if (options.include.empty()) options.include = preset.include;
  }
  fetch::check_repository(options.repository);
  check_owner(options.repository);
  options.to = args.to.empty() ? usual_folder(args, options.repository) : fs::path(args.to);
  const fetch::RetryOptions retry = options.hub.retry;
  options.hub = fetch::hub_options_of_environment();
  options.hub.retry = retry;
  return options;
}

std::string files_and_bytes(int64_t files, uint64_t bytes) {
  return counted(files, "file") + ", " + format_bytes(static_cast<double>(bytes));
}

uint64_t listed_bytes(const std::vector<fetch::HubFile>& files) {
  uint64_t bytes = 0;
  for (const fetch::HubFile& file : files) bytes += file.size;
  return bytes;
}

void print_listing(Context& context, const fetch::Listing& listing) {
  for (const fetch::HubFile& file : listing.files)
    fmt::print(context.out, "{}  {:>15}  {}\n", file.digest.hex, file.size, file.path);
  fmt::print(context.err, "{}, at commit {}\n",
             files_and_bytes(static_cast<int64_t>(listing.files.size()), listed_bytes(listing.files)), listing.commit);
}

void print_summary(std::FILE* out, const fetch::FetchOptions& options, const fetch::Listing& listing,
                   const fetch::FetchSummary& summary) {
  fmt::print(out, "folder        {}\ncommit        {}\n", options.to.string(), listing.commit);
  fmt::print(out, "fetched       {}\n", files_and_bytes(summary.fetched, summary.fetched_bytes));
  fmt::print(out, "there before  {}\n", files_and_bytes(summary.there, summary.there_bytes));
}

ExitCode fetch_named(Context& context, const FetchArgs& args) {
  Progress progress(context.err, progress_options(context.err));
  fetch::FetchOptions options = fetch_options(args);
  options.hub.note = [&](const std::string& text) { progress.note(text); };
  const InterruptNote nothing("nothing has been fetched; the same command starts over");
  const fetch::Listing listing = fetch::list_files(options);
  if (listing.left_out > 0)
    progress.note(cat("left out what Witan does not read of a model: ",
                      files_and_bytes(listing.left_out, listing.left_out_bytes), "; --include '*' chooses all"));
  if (args.list) {
    print_listing(context, listing);
    return ExitCode::done;
  }
  std::optional<TaskProgress> fetching;
  fetch::FetchHooks hooks;
  hooks.note = options.hub.note;
  hooks.begin = [&](uint64_t bytes) {
    if (bytes > 0) fetching.emplace(progress, "fetching", static_cast<double>(bytes), "B");
  };
  hooks.progress = [&](uint64_t bytes) {
    if (fetching) fetching->update(static_cast<double>(bytes));
  };
  const InterruptNote kept(cat("files that are whole are kept in ", options.to.string(), ", and parts of others in ",
                               (options.to / fetch::kFetchFolder).string(), "; the same command continues"));
  const fetch::FetchSummary summary = fetch::fetch_files(options, listing, hooks);
  progress.clear();
  print_summary(context.out, options, listing, summary);
  if (args.model && summary.fetched > 0)
    fmt::print(context.err, "to make a run of it: {} import {} --run base\n", context.program,
               shell_word(options.to.string()));
  return ExitCode::done;
}

std::string names_of_presets() {
  std::string names;
  for (const fetch::FetchPreset& preset : fetch::fetch_presets()) names += (names.empty() ? "" : ", ") + preset.name;
  return names;
}

}  // namespace

void add_data_fetch(CLI::App& data, Context& context) {
  const auto args = std::make_shared<FetchArgs>();
  CLI::App* command = add_command(
      data, context,
      {"fetch", "Fetch a dataset or a model of the Hugging Face hub",
       "Verifies every file by size and hash. Killed or cut off, the same command continues where it stopped; "
       "repeated, it fetches nothing. HF_TOKEN is the token for gated and private ones, HF_ENDPOINT the address of a "
       "mirror.",
       "witan data fetch --preset fineweb-edu-10bt\n"
       "witan data fetch HuggingFaceFW/fineweb-edu --subset sample-10BT --to data/edu\n"
       "witan data fetch mlfoundations/dclm-baseline-1.0 --include 'global-shard_01_of_10/*.jsonl.zst' --list\n"
       "witan data fetch --model Qwen/Qwen3-0.6B"},
      [&context, args] { return fetch_named(context, *args); });
  fetch::FetchOptions& options = args->fetch;
  add_option(*command, "name", args->name, "The repository: OWNER/NAME").type_name("");
  add_flag(*command, "--model", args->model, "It is a model, not a dataset");
  add_option(*command, "--preset", args->preset, "A corpus by a short name: " + names_of_presets()).type_name("NAME");
  add_option(*command, "--subset", options.subset, "The files of this subset (config_name) of a dataset's card")
      .type_name("SUBSET");
  add_option(*command, "--include", options.include,
             "Only files that match one of these patterns (repeatable); * also matches /")
      .type_name("PATTERN")
      .one_argument();
  add_option(*command, "--exclude", options.exclude, "No files that match one of these (repeatable)")
      .type_name("PATTERN")
      .one_argument();
  add_option(*command, "--revision", options.repository.revision, "A branch, a tag or a commit")
      .type_name("REVISION")
      .show_default();
  add_option(*command, "--to", args->to, "Fetch to this folder (default: data/ or models/ and the name)")
      .type_name("FOLDER");
  add_option(*command, "--connections", options.download.connections, "Connections at a time")
      .type_name("N")
      .range(1, 64)
      .show_default();
  add_option(*command, "--retries", options.hub.retry.retries, "Repeat a request that fails this often in a row")
      .type_name("N")
      .range(0, 100)
      .show_default();
  add_flag(*command, "--list", args->list, "Only list the files, with sizes and hashes");
  add_flag(*command, "--verify", options.verify, "Compare files that are there by their hashes, too");
}

}  // namespace witan::cli

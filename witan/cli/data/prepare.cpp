// witan data prepare: writes the shards that Megatron-LM's preprocess_data.py writes, with its flags.
#include "witan/data/prepare/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/data/interrupt.h"
#include "witan/cli/data/row_args.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/data/prepare/text_encoder.h"
#include "witan/report/progress/progress.h"
#include "witan/report/progress/timing.h"

namespace witan::cli {
namespace {

// Prints the progress of tokenization: MB/s, tokens/s and time left. On a terminal it redraws one line; elsewhere it
// prints a line after two seconds and then every ten, or one for every `log_interval` documents.
class PrepareReport {
 public:
  // `log_interval`: 0 for lines by time.
  PrepareReport(Progress& progress, std::string label, int64_t log_interval);

  void update(const PrepareProgress& at);

 private:
  bool is_due(double now, int64_t documents);
  std::string line(const PrepareProgress& at) const;

  Progress& progress_;
  std::string label_;
  int64_t log_interval_;
  RateEstimator source_, text_, tokens_;
  bool begun_ = false;
  double said_at_;  // seconds; when the last line was printed, or this object was made
  double quiet_seconds_ = 2;
  int64_t said_documents_ = 0;
};

PrepareReport::PrepareReport(Progress& progress, std::string label, int64_t log_interval)
    : progress_(progress), label_(std::move(label)), log_interval_(log_interval), said_at_(progress.now()) {}

void PrepareReport::update(const PrepareProgress& at) {
  const double now = progress_.now();
  if (at.text_bytes > 0 || !begun_) {
    // Rates start at this call, without the work of an earlier one.
    if (!begun_) {
      source_.update(now, 0);
      text_.update(now, 0);
      tokens_.update(now, 0);
      begun_ = true;
      said_documents_ = at.documents;
    }
    source_.update(now, static_cast<double>(at.source_bytes - std::min(at.resumed_bytes, at.source_bytes)));
    text_.update(now, static_cast<double>(at.text_bytes));
    tokens_.update(now, static_cast<double>(at.tokens - at.resumed_tokens));
  }
  const double total = static_cast<double>(std::max<uint64_t>(at.total_source_bytes, 1));
  if (progress_.is_terminal())
    progress_.update(static_cast<double>(at.source_bytes) / total, [&](int) { return line(at); });
  else if (is_due(now, at.documents))
    progress_.note(line(at));
}

bool PrepareReport::is_due(double now, int64_t documents) {
  if (log_interval_ > 0) {
    if (documents / log_interval_ == said_documents_ / log_interval_) return false;
    said_documents_ = documents;
    return true;
  }
  if (now - said_at_ < quiet_seconds_) return false;
  said_at_ = now;
  quiet_seconds_ = 10;
  return true;
}

std::string PrepareReport::line(const PrepareProgress& at) const {
  const double total = static_cast<double>(std::max<uint64_t>(at.total_source_bytes, 1));
  std::string text = fmt::format("{} {:3.0f} %  {} documents", label_,
                                 100 * std::min(1.0, static_cast<double>(at.source_bytes) / total), at.documents);
  if (const auto rate = text_.rate()) text += fmt::format("  {}/s", format_bytes(*rate));
  if (const auto rate = tokens_.rate()) text += fmt::format("  {} tokens/s", format_count(*rate));
  const auto left = source_.remaining(total - static_cast<double>(std::min(at.resumed_bytes, at.total_source_bytes)));
  if (left && *left > 0) text += "  ETA " + format_duration(*left);
  return text;
}

// Flags of preprocess_data.py that are refused, with the reason and an alternative.
struct RefusedFlag {
  const char *name, *reason;
};
constexpr std::array kRefusedFlags = {
    RefusedFlag{"--split-sentences",
                "sentences are what BERT's and T5's samples are made of, and those are not trained on; leave it out: a "
                "document is one sequence"},
    RefusedFlag{"--keep-newlines", "it belongs to --split-sentences, which is refused; newlines are always kept"},
    RefusedFlag{"--lang", "it belongs to --split-sentences, which is refused; leave it out"},
    RefusedFlag{"--find-optimal-num-workers", "all cores are used unless --workers says otherwise; leave it out"},
    RefusedFlag{"--workers-to-check", "it belongs to --find-optimal-num-workers, which is refused; leave it out"},
    RefusedFlag{
        "--max-documents",
        "it belongs to --find-optimal-num-workers, which is refused; `witan data split` cuts a part of a corpus"},
    RefusedFlag{"--performance-dir", "it belongs to --find-optimal-num-workers, which is refused; leave it out"},
    RefusedFlag{"--tokenizer-sentencepiece-legacy",
                "special tokens of one's own are not added to a SentencePiece model; put them into its tokenizer.json, "
                "and give --tokenizer-type HuggingFaceTokenizer"},
    RefusedFlag{"--tokenizer-special-tokens",
                "tokens are not added to a tokenizer; put them into its tokenizer.json, and give that"},
    RefusedFlag{"--tokenizer-metadata", "--tokenizer-type, or the content of its file, says what a tokenizer is"},
    RefusedFlag{"--tokenizer-prompt-format", "it belongs to MultimodalTokenizer, which is refused"},
    RefusedFlag{"--tiktoken-pattern",
                "it belongs to TikTokenizer, which is refused; --tokenizer FILE#PATTERN names it"},
    RefusedFlag{"--tiktoken-num-special-tokens", "it belongs to TikTokenizer, which is refused"},
    RefusedFlag{"--tiktoken-special-tokens", "it belongs to TikTokenizer, which is refused"},
    RefusedFlag{"--vocab-size", "the tokenizer knows its size; leave it out"},
    RefusedFlag{"--vocab-extra-ids", "ids are not added to a tokenizer; leave it out"}};

constexpr std::array kFlagsOfTypes = {"--tokenizer-model", "--vocab-file", "--merge-file"};

struct MegatronPrepareArgs {
  std::vector<std::string> inputs, json_keys = {"text"};
  std::string output_prefix, tokenizer, model, vocab_file, merge_file;
  MegatronTokenizerOptions tokens;
  PrepareOptions prepare;
  int workers = 0, partitions = 1;
  int64_t log_interval = 0;
  bool keep_sequential = false, include_special = false;
  std::vector<Option> of_types;  // flags that need --tokenizer-type
  std::array<std::vector<std::string>, kRefusedFlags.size()> refused;
  std::vector<Option> refused_options;
};

void check_tokenizer(const MegatronPrepareArgs& args) {
  const bool told_by_content = !args.tokenizer.empty() || (args.tokens.type.empty() && !args.model.empty());
  require<UsageError>(
      told_by_content == args.tokens.type.empty(),
      "witan data prepare: give either --tokenizer FILE, or --tokenizer-type with the flags of its kind");
  for (size_t i = 0; i < args.of_types.size(); ++i)
    require<UsageError>(args.tokenizer.empty() || !args.of_types[i].given(), "witan data prepare: ", kFlagsOfTypes[i],
                        " goes with --tokenizer-type, and --tokenizer ", args.tokenizer,
                        " is given, which is recognised by its content: leave one of them out");
  require<UsageError>(args.tokens.eod_token.empty() || args.tokens.append_eod, "witan data prepare: --eod-token ",
                      clipped(args.tokens.eod_token),
                      " says which token --append-eod adds, and without that none is added: add --append-eod, or "
                      "leave it out");
}

// The keys of --json-keys, separated by spaces or commas.
std::vector<std::string> keys_of(const std::vector<std::string>& words) {
  std::vector<std::string> keys;
  for (const std::string& word : words)
    for (size_t begin = 0; begin <= word.size();) {
      const size_t end = std::min(word.find(',', begin), word.size());
      keys.push_back(word.substr(begin, end - begin));
      begin = end + 1;
    }
  return keys;
}

void check_keys(const std::vector<std::string>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    require<UsageError>(!keys[i].empty() && keys[i].find('/') == std::string::npos, "witan data prepare: --json-keys ",
                        clipped(keys[i]), ": a key names files, so it may not be empty or have a slash");
    require<UsageError>(std::find(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(i), keys[i]) ==
                            keys.begin() + static_cast<ptrdiff_t>(i),
                        "witan data prepare: --json-keys has ", clipped(keys[i]), " twice: give each key once");
  }
}

void check(const MegatronPrepareArgs& args) {
  for (size_t i = 0; i < kRefusedFlags.size(); ++i)
    require<UsageError>(!args.refused_options[i].given(), "witan data prepare: ", kRefusedFlags[i].name,
                        " is not supported: ", kRefusedFlags[i].reason);
  require<UsageError>(!args.inputs.empty(), "witan data prepare: give the rows: --input FILE");
  require<UsageError>(!args.output_prefix.empty(),
                      "witan data prepare: give the beginning of the names of the shards: --output-prefix PREFIX");
  check_tokenizer(args);
  require<UsageError>(args.partitions == 1 || args.keep_sequential, "witan data prepare: --partitions ",
                      args.partitions,
                      " deals rows out to the partitions in turn, which changes their order: add "
                      "--keep-sequential-samples, or leave it out (all cores work on one file)");
  require<UsageError>(
      !args.include_special || !args.tokens.bare,
      "witan data prepare: --tokenizer-hf-include-special-tokens and --no-special-tokens contradict each "
      "other: leave one of them out");
  check_keys(args.json_keys);
}

// PREFIX_key_document: Megatron-LM's name for the shards of a key.
std::string prefix_of(const std::string& output_prefix, const std::string& key) {
  return cat(output_prefix, "_", key, "_document");
}

void print_prepared(std::FILE* out, const PreparedDataset& data, const TextEncoder& encoder) {
  const CorpusStatistics& corpus = data.corpus;
  fmt::print(out, "shards        {0}.bin, {0}.idx{1}\n", data.prefix.string(), data.reused ? " (complete before)" : "");
  if (data.resumed_tokens > 0)
    fmt::print(out, "continued     after {} of an earlier start\n", counted(data.resumed_tokens, "token"));
  fmt::print(out, "documents     {}{}\n", corpus.documents + corpus.empty_documents,
             corpus.empty_documents > 0 ? cat(", ", corpus.empty_documents, " of them empty") : "");
  fmt::print(out, "text          {}\n", format_bytes(static_cast<double>(corpus.text_bytes)));
  fmt::print(out, "tokens        {} (vocabulary of {})\n", data.tokens, encoder.vocab_size);
  if (corpus.bad_rows > 0)
    fmt::print(out, "unusable rows {} of {}: see {}.quarantine.jsonl\n", corpus.bad_rows, corpus.rows,
               data.prefix.string());
}

// Options for reading the text of a key, from rows that have all keys.
CorpusOptions corpus_of_key(const MegatronPrepareArgs& args, const std::string& key) {
  CorpusOptions corpus = args.prepare.corpus;
  corpus.json_key = key;
  corpus.key_option = "--json-keys";
  for (const std::string& other : args.json_keys)
    if (other != key) corpus.other_keys.push_back(other);
  corpus.visit_empty = true;  // empty documents are numbered too
  return corpus;
}

// Throws before hours of work for sources that would fail.
void check_sources(const MegatronPrepareArgs& args, const std::vector<Source>& sources) {
  for (const Source& source : sources)
    require<DataError>(args.json_keys.size() == 1 || source.kind != SourceKind::text, source.path.string(),
                       ": plain text has no keys, and several --json-keys are asked for: give files of rows, or one "
                       "key for this file");
  for (const std::string& key : args.json_keys) {
    check_own_shards(prefix_of(args.output_prefix, key), sources, "--output-prefix");
    check_encoding(sources, corpus_of_key(args, key));
  }
}

void prepare_key(Context& context, const MegatronPrepareArgs& args, const std::string& key, const Sources& sources,
                 const TextEncoder& encoder, Progress& progress) {
  const std::string prefix = prefix_of(args.output_prefix, key);
  PrepareOptions options = args.prepare;
  options.corpus = corpus_of_key(args, key);
  options.measure_split = false;
  options.threads = args.workers > 0 ? args.workers : usable_cores();
  options.replacing = [&](const auto& changes) { progress.note(describe_replacing(prefix, changes)); };
  options.dropping = [&] { progress.note(describe_dropping(prefix)); };
  PrepareReport report(progress, cat("tokenizing ", key), args.log_interval);
  const PreparedDataset data = saying_what_is_kept(progress, prefix, [&] {
    return prepare_dataset(sources.files, encoder, prefix, options,
                           [&](const PrepareProgress& at) { report.update(at); });
  });
  progress.clear();
  print_prepared(context.out, data, encoder);
}

ExitCode prepare_megatron(Context& context, MegatronPrepareArgs args) {
  args.json_keys = keys_of(args.json_keys);
  check(args);
  Progress progress(context.err, progress_options(context.err));
  MegatronTokenizerOptions tokens = args.tokens;
  tokens.model = args.tokenizer.empty() ? args.model : args.tokenizer;
  tokens.vocab_file = args.vocab_file;
  tokens.merge_file = args.merge_file;
  TextEncoder encoder = megatron_encoder(tokens);
  if (!tokens.model.empty()) encoder.file = fs::absolute(tokens.model).string();
  const Sources sources = find_sources(paths_of(args.inputs), args.prepare.selection);
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  check_sources(args, sources.files);
  if (!tokens.append_eod)
    progress.note("there is no token between documents: --append-eod adds the tokenizer's end of text after each");
  for (const std::string& key : args.json_keys) prepare_key(context, args, key, sources, encoder, progress);
  const std::string shards = prefix_of(args.output_prefix, args.json_keys.front());
  const std::string with = tokens.model.empty() ? cat(args.vocab_file, ",", args.merge_file) : tokens.model.string();
  fmt::print(context.err, "to train on it: {} train --data-path {} --tokenizer {}\n", context.program,
             shell_word(shards), shell_word(with));
  return ExitCode::done;
}

void add_tokenizer_names(CLI::App& command, MegatronPrepareArgs& args) {
  const std::string group = "tokens";
  add_option(command, "--tokenizer", args.tokenizer, "Tokenizer in any format, recognised by its content")
      .type_name("FILE")
      .group(group);
  add_option(command, "--tokenizer-type", args.tokens.type,
             "Kind of tokenizer in Megatron-LM's names: HuggingFaceTokenizer, SentencePieceTokenizer, "
             "GPTSentencePieceTokenizer, Llama2Tokenizer, GPT2BPETokenizer")
      .type_name("NAME")
      .group(group);
  add_flag(command, "--tokenizer-hf-include-special-tokens", args.include_special,
           "Accepted without effect: the tokens that a tokenizer puts around texts are added anyway")
      .group(group);
  add_flag(command, "--no-special-tokens", args.tokens.bare,
           "Leave out the tokens that the tokenizer puts around texts, as Megatron-LM does without "
           "--tokenizer-hf-include-special-tokens")
      .group(group);
  const std::array names = {&args.model, &args.vocab_file, &args.merge_file};
  static constexpr std::array kHelp = {"Its file, or the folder with it", "vocab.json of GPT2BPETokenizer",
                                       "merges.txt of GPT2BPETokenizer"};
  for (size_t i = 0; i < kFlagsOfTypes.size(); ++i)
    args.of_types.push_back(add_option(command, kFlagsOfTypes[i], *names[i], kHelp[i]).type_name("FILE").group(group));
  add_flag(command, "--append-eod", args.tokens.append_eod, "End each document with the tokenizer's end of text")
      .group(group);
  add_option(command, "--eod-token", args.tokens.eod_token,
             "The token that --append-eod adds; otherwise eos_token of tokenizer_config.json, or the end of text")
      .type_name("TOKEN")
      .group(group);
}

void add_work(CLI::App& command, MegatronPrepareArgs& args) {
  const std::string group = "work";
  add_option(command, "--workers", args.workers, "Threads that tokenize (default: all cores)")
      .type_name("N")
      .range(1, 4096)
      .group(group);
  add_option(command, "--log-interval", args.log_interval,
             "Documents between lines of progress in a log file (default: a line every ten seconds)")
      .type_name("N")
      .range(int64_t{1}, int64_t{1} << 60)
      .group(group);
  add_option(command, "--piece-bytes", args.prepare.piece_bytes,
             "The most bytes of text that are tokenized again after a kill")
      .type_name("N")
      .show_default()
      .group(group);
  add_option(command, "--partitions", args.partitions, "Taken with --keep-sequential-samples, without any effect")
      .type_name("N")
      .range(1, 1 << 20)
      .group(group);
  add_flag(command, "--keep-sequential-samples", args.keep_sequential, "Documents always keep their order")
      .group(group);
}

// Declares refused flags, so that their refusal names a reason.
void add_refused(CLI::App& command, MegatronPrepareArgs& args) {
  for (size_t i = 0; i < kRefusedFlags.size(); ++i)
    args.refused_options.push_back(
        add_option(command, kRefusedFlags[i].name, args.refused[i], "Refused, with the reason")
            .optional_value()
            .group(""));
}

}  // namespace

void add_data_prepare(CLI::App& data, Context& context) {
  const auto args = std::make_shared<MegatronPrepareArgs>();
  CLI::App* command = add_command(
      data, context,
      {"prepare", "Tokenize rows as Megatron-LM's preprocess_data.py does, under its names",
       "Writes PREFIX_KEY_document.bin and .idx, the same bytes for any number of workers. After a kill, or a full "
       "disk, the same command continues. Rows that cannot be used are counted, and kept in a .quarantine.jsonl.",
       "witan data prepare --input rows.jsonl.zst --output-prefix data/rows --tokenizer tokenizer.json --append-eod\n"
       "witan data prepare --input corpus/ --include '*.txt' --output-prefix data/texts --tokenizer tokenizer.json\n"
       "witan data prepare --input rows.jsonl.zst --json-keys text content --output-prefix data/two \\\n"
       "    --tokenizer-type HuggingFaceTokenizer --tokenizer-model model-folder --append-eod"},
      [&context, args] { return prepare_megatron(context, *args); });
  add_option(*command, "--input,--input-dir", args->inputs,
             "Files and folders of JSON Lines, Parquet, Arrow, .tar, .mds or text, separated by spaces or commas")
      .type_name("FILE");
  add_selection_args(*command, args->prepare.selection);
  add_option(*command, "--output-prefix", args->output_prefix, "Write to PREFIX_KEY_document.bin and .idx")
      .type_name("PREFIX");
  add_option(*command, "--json-keys", args->json_keys,
             "Keys (or columns) of the text, separated by spaces or commas; each becomes its own pair of files")
      .type_name("KEYS")
      .show_default();
  add_option(*command, "--bad-row-share", args->prepare.corpus.bad_row_share,
             "Fail when more than this share of rows is unusable")
      .type_name("SHARE")
      .range(0.0, 1.0)
      .show_default();
  add_flag(*command, "--replace-invalid-utf8", args->prepare.corpus.replace_invalid_utf8,
           "Replace invalid UTF-8 by U+FFFD instead of refusing the text");
  add_tokenizer_names(*command, *args);
  add_work(*command, *args);
  add_refused(*command, *args);
}

}  // namespace witan::cli

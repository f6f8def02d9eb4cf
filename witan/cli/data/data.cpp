// witan data: turns text into token shards, and inspects shards.
#include <fmt/format.h>

#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/data/interrupt.h"
#include "witan/cli/data/row_args.h"
#include "witan/cli/data/shards.h"
#include "witan/data/prepare/prepare.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/train/data/run_conversations.h"
#include "witan/train/data/run_data.h"
#include "witan/train/data/run_tokenizer.h"

namespace witan::cli {
namespace {

struct DataArgs {
  std::vector<std::string> inputs;
  std::string output, tokenizer, inspect;
  BpeTrainerConfig bpe;
  PrepareOptions prepare;
  RunConfig chat;  // only data.sft and the keys of conversations are used
};

// The path of a tokenizer that was trained for shards PREFIX.bin and PREFIX.idx.
fs::path own_tokenizer(const std::string& prefix) {
  return prefix + ".tokenizer.json";
}

std::shared_ptr<const Tokenizer> make_tokenizer(const DataArgs& args, const Sources& sources, Progress& progress) {
  if (!args.tokenizer.empty()) return std::make_shared<Tokenizer>(Tokenizer::load(args.tokenizer));
  const InterruptNote note("an unfinished tokenizer is not kept; the same command starts over");
  return std::make_shared<Tokenizer>(
      trained_tokenizer(own_tokenizer(args.output), args.bpe, sources.files, args.prepare.corpus, progress));
}

void print_statistics(std::FILE* out, const PreparedDataset& data, const TextEncoder& encoder) {
  const CorpusStatistics& corpus = data.corpus;
  const auto bytes = static_cast<double>(corpus.text_bytes), tokens = static_cast<double>(data.tokens);
  fmt::print(out, "shards        {0}.bin, {0}.idx{1}\n", data.prefix.string(), data.reused ? " (reused)" : "");
  fmt::print(out, "documents     {}{}\n", corpus.documents,
             corpus.empty_documents > 0 ? cat("; skipped ", counted(corpus.empty_documents, "empty document")) : "");
  fmt::print(out, "text          {}\n", format_bytes(bytes));
  fmt::print(out, "tokens        {} (vocabulary of {}, {:.3f} bytes per token)\n", data.tokens, encoder.vocab_size,
             bytes / std::max(tokens, 1.0));
  const auto print_part = [&](const char* name, const PartSize& part) {
    fmt::print(out, "{:<13} {} in {}\n", name, counted(part.tokens, "token"), counted(part.documents, "document"));
  };
  print_part("training", data.train);
  print_part("validation", data.held_out);
  if (corpus.bad_rows > 0)
    fmt::print(out, "unusable rows {} of {}: see {}.quarantine.jsonl\n", corpus.bad_rows, corpus.rows,
               data.prefix.string());
  if (corpus.replaced > 0)
    fmt::print(out, "invalid UTF-8 {} replaced by U+FFFD\n", counted(corpus.replaced, "sequence"));
}

// Returns PREFIX for PREFIX, PREFIX.bin or PREFIX.idx. Throws UsageError if the result is not a prefix of files.
std::string prefix_of_output(const DataArgs& args) {
  require<UsageError>(!args.output.empty(),
                      "witan data: give the prefix of the token shards to write: --output PREFIX");
  require<UsageError>(fs::path(args.output).has_filename(), "witan data: --output ", args.output,
                      " is a folder: give the beginning of the names of the shards in it, such as ",
                      (fs::path(args.output) / "my").string());
  const std::string prefix = prefix_of_shards(args.output);
  std::error_code absent;
  for (const fs::path& input : paths_of(args.inputs))
    require<UsageError>(!fs::is_regular_file(input, absent) || !fs::equivalent(input, prefix, absent),
                        "witan data: --output ", args.output,
                        " is the text that is read: give the beginning of the names of the shards, such as ",
                        fs::path(prefix).replace_extension().string(), " for its .bin and .idx");
  return prefix;
}

ExitCode prepare(Context& context, DataArgs args) {
  args.output = prefix_of_output(args);
  if (args.tokenizer.empty()) const BpeTrainer checked(args.bpe);  // before the text is read
  Progress progress(context.err, progress_options(context.err));
  const Sources sources = find_sources(paths_of(args.inputs), args.prepare.selection);
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  PrepareOptions options = args.prepare;
  if (args.chat.data.sft) options.corpus.messages_key = args.chat.data.messages_key;
  options.corpus.preferences = args.chat.data.preferences;
  check_own_shards(args.output, sources.files, "--output");
  if (args.tokenizer.empty()) check_own_tokenizer(own_tokenizer(args.output), "--output");
  check_encoding(sources.files, options.corpus);
  require<UsageError>(!args.chat.data.sft || !args.tokenizer.empty(),
                      "witan data --sft: give the tokenizer of the model that is fine-tuned: --tokenizer FILE");
  const auto tokenizer = make_tokenizer(args, sources, progress);
  TextEncoder encoder = text_encoder(tokenizer);
  if (!args.tokenizer.empty()) encoder.file = fs::absolute(args.tokenizer).string();
  TaskProgress tokenizing(progress, "tokenizing",
                          static_cast<double>(std::max<uint64_t>(total_bytes(sources.files), 1)), "B");
  RunConfig chat = args.chat;
  chat.data.tokenizer = args.tokenizer;
  options.corpus.conversations = find_conversation_format(chat, *tokenizer);
  options.split = split_options(DataConfig());  // the split of `witan train --data-path`
  options.threads = usable_cores();
  options.replacing = [&](const auto& changes) { progress.note(describe_replacing(args.output, changes)); };
  options.dropping = [&] { progress.note(describe_dropping(args.output)); };
  const PreparedDataset data = saying_what_is_kept(progress, args.output, [&] {
    return prepare_dataset(sources.files, encoder, args.output, options,
                           [&](const PrepareProgress& at) { tokenizing.update(static_cast<double>(at.source_bytes)); });
  });
  progress.clear();
  print_statistics(context.out, data, encoder);
  const std::string with = args.tokenizer.empty() ? own_tokenizer(args.output).string() : args.tokenizer;
  std::string sft = args.chat.data.sft ? " --sft" : "";
  if (args.chat.data.preferences) sft += " --preferences --objective preference";
  if (const std::string& chat_template = args.chat.data.chat_template; !chat_template.empty())
    sft += " --chat-template " + shell_word(chat_template);
  if (args.chat.data.content_special_tokens) sft += " --content-special-tokens true";  // the run's chats need it too
  fmt::print(context.err, "to train on it: {} train --data-path {} --tokenizer {}{}\n", context.program,
             shell_word(args.output), shell_word(with), sft);
  return ExitCode::done;
}

ExitCode act(Context& context, const DataArgs& args) {
  require<UsageError>(args.inputs.empty() != args.inspect.empty(),
                      "witan data: give files of text to tokenize, or --inspect PREFIX to inspect token shards");
  return args.inspect.empty() ? prepare(context, args) : describe_shards(context, args.inspect, args.tokenizer);
}

}  // namespace

void add_data(CLI::App& app, Context& context) {
  const auto args = std::make_shared<DataArgs>();
  CLI::App* command = add_command(
      app, context,
      {"data", "Turn text into token shards (.bin/.idx), or inspect them",
       "Reads plain text and JSON Lines, also .gz and .zst, Parquet, Arrow, WebDataset's .tar, MosaicML's .mds, "
       "and folders of them. Writes Megatron-LM's format. Shards (and their tokenizer) that already exist for "
       "the same text, tokenizer and options are reused, and made again if those have changed. Files of "
       "another origin are not overwritten.",
       "witan data my.txt more/ --output data/my --vocab-size 8192\n"
       "witan data rows.jsonl.zst --json-key content --output data/rows --tokenizer tokenizer.json\n"
       "witan data messages.jsonl --sft --output data/chats --tokenizer model-folder\n"
       "witan data pairs.jsonl --sft --preferences --output data/pairs --tokenizer model-folder\n"
       "witan data --inspect data/my"},
      [&context, args] { return act(context, *args); });
  add_option(*command, "inputs", args->inputs,
             "Files and folders of text, JSON Lines, Parquet, Arrow, .tar or .mds, separated by spaces or commas")
      .type_name("");
  add_selection_args(*command, args->prepare.selection);
  add_option(*command, "--output", args->output, "Write the shards to PREFIX.bin and PREFIX.idx").type_name("PREFIX");
  const Option tokenizer =
      add_option(*command, "--tokenizer", args->tokenizer,
                 "Use this tokenizer, a file or folder of any kind, instead of training PREFIX.tokenizer.json")
          .type_name("FILE");
  add_option(*command, "--vocab-size", args->bpe.vocab_size, "Vocabulary size of the tokenizer that is trained")
      .type_name("N")
      .excludes(tokenizer)
      .show_default();
  add_text_args(*command, args->prepare.corpus);
  DataConfig& chat = args->chat.data;
  const Option sft = add_flag(*command, "--sft", chat.sft,
                              "Rows are conversations: write the shards of fine-tuning (docs/finetune.md)");
  add_flag(*command, "--preferences", chat.preferences,
           "Rows are pairs of answers, {\"prompt\", \"chosen\", \"rejected\"}, with --sft (docs/rl.md)")
      .needs(sft);
  add_option(*command, "--messages-key", chat.messages_key, "JSON key of the messages, with --sft")
      .type_name("KEY")
      .show_default()
      .needs(sft);
  add_option(*command, "--chat-template", chat.chat_template,
             "Chat template, with --sft; otherwise that of the tokenizer's folder")
      .type_name("FILE")
      .needs(sft);
  add_option(*command, "--loss-on", chat.loss_on, "What is learnt from, with --sft")
      .one_of({"answers", "all"})
      .show_default()
      .needs(sft);
  add_flag(*command, "--content-special-tokens", chat.content_special_tokens,
           "Special tokens that messages spell are control tokens, not text, with --sft")
      .needs(sft);
  add_option(*command, "--inspect", args->inspect, "Inspect these shards: PREFIX, PREFIX.bin or PREFIX.idx")
      .type_name("PREFIX");
  add_data_fetch(*command, context);
  add_data_prepare(*command, context);
  add_data_shuffle(*command, context);
  add_data_merge(*command, context);
  add_data_split(*command, context);
  add_data_dedup(*command, context);
  add_data_stats(*command, context);
  add_data_inspect(*command, context);
}

}  // namespace witan::cli

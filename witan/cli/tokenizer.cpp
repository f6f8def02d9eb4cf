// witan tokenizer: trains, uses and inspects tokenizers.
#include "witan/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/generate/line_input.h"
#include "witan/train/data/run_tokenizer.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

struct TrainArgs {
  std::vector<std::string> files;
  std::string output;
  BpeTrainerConfig bpe;
  CorpusOptions corpus;
};

ExitCode train(Context& context, const TrainArgs& args) {
  const BpeTrainer checked(args.bpe);  // before the text is read
  Progress progress(context.err, progress_options(context.err));
  const Sources sources = find_sources(paths_of(args.files));
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  check_encoding(sources.files, args.corpus);
  const Tokenizer tokenizer = train_tokenizer(args.bpe, sources.files, args.corpus, progress);
  tokenizer.save(args.output);
  fmt::print(context.out, "{}\n", args.output);
  return ExitCode::done;
}

void add_train_command(CLI::App& group, Context& context) {
  const auto args = std::make_shared<TrainArgs>();
  CLI::App* command = add_command(
      group, context,
      {"train", "Train a byte-level BPE tokenizer on text", "",
       "witan tokenizer train my.txt --output tokenizer.json\n"
       "witan tokenizer train corpus/ rows.jsonl.gz --vocab-size 32000 --pattern gpt2 --output tokenizer.json"},
      [&context, args] { return train(context, *args); });
  add_option(*command, "files", args->files,
             "Files and folders of text, JSON Lines (both also .gz and .zst), Parquet or Arrow")
      .required()
      .type_name("");
  add_option(*command, "--output", args->output, "Write the tokenizer to this file").required().type_name("FILE");
  add_option(*command, "--vocab-size", args->bpe.vocab_size,
             "Vocabulary size, including the 256 bytes and the end-of-text token")
      .type_name("N")
      .show_default();
  add_option(*command, "--pattern", args->bpe.pattern,
             "Pattern that splits text into pre-tokens: llama3, gpt2 or qwen2")
      .type_name("NAME")
      .show_default();
  add_option(*command, "--min-frequency", args->bpe.min_frequency, "Merge only pairs that occur at least N times")
      .type_name("N")
      .show_default();
  add_text_args(*command, args->corpus);
}

// The arguments that commands which use a tokenizer share.
struct UseArgs {
  std::string file;  // empty: the tokenizer of the latest run
  RunArgs run;
  std::vector<std::string> words;
  bool special = false, whole = false;
  bool jsonl = false;
};

Tokenizer load(const UseArgs& args) {
  return Tokenizer::load(args.file.empty() ? find_run(args.run.runs_folder, args.run.run) / "tokenizer.json"
                                           : fs::path(args.file));
}

void add_use_args(CLI::App& command, UseArgs& args) {
  add_option(command, "--tokenizer", args.file,
             "Path of a tokenizer: tokenizer.json, tekken.json, .model, .tiktoken, or a folder (default: the run's)")
      .type_name("FILE");
  add_run_args(command, args.run);
}

// Calls `each` with every line of standard input and its name for messages.
template <class Each>
void for_each_line(Context& context, const UseArgs& args, Each each) {
  require<UsageError>(args.words.empty(), "--jsonl reads standard input: give no text or ids as arguments");
  LineInput lines(context.in, context.out, context.err, "witan");
  for (int64_t number = 1;; ++number) {
    const auto line = lines.next("");
    if (!line) return;
    each(*line, cat("standard input, line ", number));
  }
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const UseArgs& args, const std::string& text) {
  return args.whole ? tokenizer.encode_whole(text, args.special) : tokenizer.encode(text, args.special);
}

void encode_lines(Context& context, const UseArgs& args, const Tokenizer& tokenizer) {
  for_each_line(context, args, [&](const std::string& line, const std::string& source) {
    const Json text = parse_json(line, source);
    require<DataError>(text.is_string(), source, ": not a text in JSON, such as \"Hello\"");
    fmt::print(context.out, "{}\n", fmt::join(encoded(tokenizer, args, text.get_ref<const std::string&>()), " "));
  });
}

ExitCode encode(Context& context, const UseArgs& args) {
  require<UsageError>(args.words.size() <= 1, "witan tokenizer encode: unexpected argument ",
                      args.words.size() > 1 ? clipped(args.words[1]) : "",
                      ": put quotes around a text of several words");
  const Tokenizer tokenizer = load(args);
  if (args.jsonl) {
    encode_lines(context, args, tokenizer);
    return ExitCode::done;
  }
  const std::string text = args.words.empty() ? read_all(context.in) : args.words.front();
  fmt::print(context.out, "{}\n", fmt::join(encoded(tokenizer, args, text), " "));
  return ExitCode::done;
}

void add_tokenizer_encode(CLI::App& group, Context& context) {
  const auto args = std::make_shared<UseArgs>();
  CLI::App* command = add_command(group, context,
                                  {"encode", "Convert text to token ids", "",
                                   "witan tokenizer encode \"Hello there\"\n"
                                   "witan tokenizer encode --tokenizer tokenizer.json < my.txt\n"
                                   "witan tokenizer encode --tokenizer tokenizer.json --jsonl < texts.jsonl"},
                                  [&context, args] { return encode(context, *args); });
  add_option(*command, "text", args->words,
             "Text to encode (default: standard input); put -- before a text that begins with -")
      .type_name("");
  add_use_args(*command, *args);
  add_flag(*command, "--special", args->special,
           "Encode the text of special tokens, such as <|endoftext|>, as these tokens");
  add_flag(*command, "--add-special-tokens", args->whole,
           "Add the tokens that the tokenizer puts around every text, such as <s>");
  add_flag(*command, "--jsonl", args->jsonl,
           "Each line of standard input is a text in JSON (\"Hello\\n\"); print its ids on a line");
}

int32_t parse_id(std::string_view word) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
  require<UsageError>(error == std::errc() && end == word.data() + word.size(),
                      "witan tokenizer decode: ", clipped(word),
                      " is not a token id: give whole numbers, separated by spaces");
  return id;
}

std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  constexpr std::string_view kBlanks = " \t\r\n,";
  for (size_t begin = text.find_first_not_of(kBlanks); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBlanks, begin), text.size());
    ids.push_back(parse_id(text.substr(begin, end - begin)));
    begin = text.find_first_not_of(kBlanks, end);
  }
  return ids;
}

void decode_lines(Context& context, const UseArgs& args, const Tokenizer& tokenizer) {
  for_each_line(context, args, [&](const std::string& line, const std::string&) {
    StreamingDecoder decoder(tokenizer, true);
    std::string text;
    for (const int32_t id : parse_ids(line)) text += decoder.push(id);
    fmt::print(context.out, "{}\n", Json(text + decoder.flush()).dump());
  });
}

ExitCode decode(Context& context, const UseArgs& args) {
  const Tokenizer tokenizer = load(args);
  if (args.jsonl) {
    decode_lines(context, args, tokenizer);
    return ExitCode::done;
  }
  const std::string ids = args.words.empty() ? read_all(context.in) : fmt::format("{}", fmt::join(args.words, " "));
  const std::string text = tokenizer.decode(parse_ids(ids));
  std::fwrite(text.data(), 1, text.size(), context.out);
  // People get a final line feed; a file gets exactly the text's bytes.
  if (!text.ends_with('\n') && ::isatty(::fileno(context.out))) fmt::print(context.out, "\n");
  return ExitCode::done;
}

void add_tokenizer_decode(CLI::App& group, Context& context) {
  const auto args = std::make_shared<UseArgs>();
  CLI::App* command = add_command(group, context,
                                  {"decode", "Convert token ids to text", "",
                                   "witan tokenizer decode 39 68 75\n"
                                   "witan tokenizer encode < my.txt | witan tokenizer decode"},
                                  [&context, args] { return decode(context, *args); });
  add_option(*command, "ids", args->words, "Token ids to decode (default: standard input)").type_name("");
  add_use_args(*command, *args);
  add_flag(*command, "--jsonl", args->jsonl,
           "Each line of standard input holds the ids of a text; print it on a line, in JSON. Bytes that are no UTF-8 "
           "become U+FFFD");
}

struct InspectArgs {
  UseArgs use;
  std::vector<std::string> text;
  CorpusOptions corpus;
};

void print_efficiency(Context& context, const Tokenizer& tokenizer, const InspectArgs& args) {
  double bytes = 0, tokens = 0;
  read_corpus(find_sources(paths_of(args.text)).files, args.corpus, [&](const Document& document) {
    bytes += static_cast<double>(document.text.size());
    tokens += static_cast<double>(tokenizer.encode(document.text).size());
  });
  fmt::print(context.out, "text          {} in {} tokens: {:.3f} bytes/token\n", format_bytes(bytes),
             format_count(tokens), bytes / std::max(tokens, 1.0));
}

std::string normalizer_of(const TokenizerSpec& spec) {
  static constexpr std::array<const char*, 11> kNames = {
      "NFC", "NFD", "NFKC", "NFKD", "lower case", "strip", "prepend", "replace", "precompiled", "no accents", "BERT"};
  if (!spec.sentencepiece.empty()) return "SentencePiece";
  std::string names;
  for (const NormalizerStep& step : spec.normalizers)
    names += cat(names.empty() ? "" : ", ", kNames[static_cast<size_t>(step.kind)]);
  return names.empty() ? "none" : names;
}

ExitCode inspect(Context& context, const InspectArgs& args) {
  const Tokenizer tokenizer = load(args.use);
  const TokenizerSpec& spec = tokenizer.spec();
  size_t longest = 0;
  for (const std::string& token : spec.tokens) longest = std::max(longest, token.size());
  fmt::print(context.out, "vocabulary    {}\nmerges        {}\n", tokenizer.vocab_size(), spec.merges.size());
  fmt::print(context.out, "longest token {} bytes\n", longest);
  for (const AddedToken& added : spec.added)
    fmt::print(context.out, "{} {:>6} {}\n", added.special ? "special      " : "added        ", added.id,
               clipped(added.text));
  if (const auto end = tokenizer.end_of_text()) fmt::print(context.out, "end of text   {}\n", *end);
  if (!spec.before.empty() || !spec.after.empty())
    fmt::print(context.out, "around texts  {}\n", fmt::join(tokenizer.encode_whole(""), " "));
  for (const SplitStep& step : spec.patterns) fmt::print(context.out, "pattern       {}\n", step.pattern);
  fmt::print(context.out, "normalizer    {}\nhash          {}\n", normalizer_of(spec), tokenizer.hash());
  if (!args.text.empty()) print_efficiency(context, tokenizer, args);
  return ExitCode::done;
}

void add_tokenizer_inspect(CLI::App& group, Context& context) {
  const auto args = std::make_shared<InspectArgs>();
  CLI::App* command = add_command(group, context,
                                  {"inspect", "Show sizes, special tokens and split pattern of a tokenizer",
                                   "With --text it also prints the compression: bytes per token.",
                                   "witan tokenizer inspect tokenizer.json\n"
                                   "witan tokenizer inspect tokenizer.json --text my.txt"},
                                  [&context, args] { return inspect(context, *args); });
  add_option(*command, "tokenizer", args->use.file,
             "Path of a tokenizer: tokenizer.json, tekken.json, .model, .tiktoken, or a folder (default: the run's)")
      .type_name("");
  add_run_args(*command, args->use.run);
  add_option(*command, "--text,--data", args->text, "Files and folders of text, separated by spaces or commas")
      .type_name("FILE");
  add_text_args(*command, args->corpus);
}

}  // namespace

void add_tokenizer(CLI::App& app, Context& context) {
  CLI::App* group = add_group(app, {"tokenizer", "Train, use and inspect tokenizers (tokenizer.json)", "",
                                    "witan tokenizer train my.txt --output tokenizer.json"});
  add_train_command(*group, context);
  add_tokenizer_encode(*group, context);
  add_tokenizer_decode(*group, context);
  add_tokenizer_inspect(*group, context);
}

}  // namespace witan::cli

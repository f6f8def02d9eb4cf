// witan data inspect: shows documents by number, and describes token shards.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/data/shards.h"
#include "witan/data/corpus/corpus.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/datasets/token_files.h"
#include "witan/data/prepare/shard_manifest.h"

namespace witan::cli {

std::string prefix_of_shards(const std::string& path) {
  const bool named = path.ends_with(".bin") || path.ends_with(".idx");
  return named ? path.substr(0, path.size() - 4) : path;
}

std::optional<Tokenizer> tokenizer_of_shards(const std::string& path, const std::string& name, std::FILE* err) {
  fs::path used = name.empty() ? fs::path(prefix_of_shards(path) + ".tokenizer.json") : fs::path(name);
  if (name.empty() && !fs::exists(used)) {  // the shards' tokenizer may still be at its original path
    const auto made_with = tokenizer_of_manifest(prefix_of_shards(path));
    if (!made_with || made_with->file.empty()) return std::nullopt;
    used = made_with->file;
    const fs::path without_pattern = made_with->file.substr(0, made_with->file.rfind('#'));
    if (!fs::exists(used) && !fs::exists(without_pattern)) return std::nullopt;
  }
  Tokenizer tokenizer = Tokenizer::load(used);
  if (const auto found = find_tokenizer_mismatch(path, tokenizer, used.string()))
    fmt::print(err, "warning: {}{}\n", found->message,
               found->certain ? ". What is shown as text is not what it was" : "");
  return tokenizer;
}

bool names_shards(const std::string& path) {
  if (path.ends_with(".bin") || path.ends_with(".idx") || path.ends_with(".npy")) return true;
  return !fs::exists(path) && fs::exists(path + ".bin");
}

namespace {

// Prints the beginning of the first document that has tokens.
void print_first_tokens(std::FILE* out, const TokenDataset& data, const std::optional<Tokenizer>& tokenizer) {
  constexpr int64_t kShown = 48;
  int64_t document = 0;
  while (document < data.documents() && data.length(document) == 0) ++document;
  if (document == data.documents()) return;
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kShown, data.length(document))));
  data.read(document, 0, ids);
  fmt::print(out, "first tokens  {}\n", fmt::join(ids, " "));
  if (tokenizer) fmt::print(out, "first text    {}\n", clipped(tokenizer->decode(ids), 400));
}

std::string type_of(const TokenDataset& data) {
  const auto* indexed = dynamic_cast<const IndexedDataset*>(&data);
  if (dynamic_cast<const NpyTokens*>(&data)) return "OLMo's or NumPy's .npy";
  if (!indexed) return "llm.c";
  const bool is_unsigned = indexed->type() == TokenType::u8 || indexed->type() == TokenType::u16;
  return fmt::format("Megatron-LM, {}int{}", is_unsigned ? "u" : "", 8 * token_width(indexed->type()));
}

struct InspectDocumentsArgs {
  std::string path, documents, tokenizer;
  bool tokens = false, json = false;
  CorpusOptions corpus;
};

// A range of document numbers, [first, last].
struct DocumentRange {
  int64_t first = 0, last = 0;
};

int64_t parse_document_number(std::string_view word, std::string_view whole) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  require<UsageError>(error == std::errc() && end == word.data() + word.size() && number >= 0 && !word.empty(),
                      "witan data inspect --document ", clipped(whole),
                      ": give numbers from 0 on and ranges of them, such as 17 or 3,10-12");
  return number;
}

// The ranges in ascending order, in which files are read.
std::vector<DocumentRange> parse_ranges(const std::string& text) {
  std::vector<DocumentRange> ranges;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    const size_t dash = word.find('-');
    const int64_t first = parse_document_number(word.substr(0, dash), text);
    const int64_t last = dash == std::string_view::npos ? first : parse_document_number(word.substr(dash + 1), text);
    require<UsageError>(first <= last, "witan data inspect --document ", clipped(text), ": the range ", clipped(word),
                        " ends before it begins");
    ranges.push_back({first, last});
    begin = end + 1;
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const DocumentRange& a, const DocumentRange& b) { return a.first < b.first; });
  return ranges;
}

bool in_ranges(const std::vector<DocumentRange>& ranges, int64_t number) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const DocumentRange& range) { return range.first <= number && number <= range.last; });
}

int64_t last_of(const std::vector<DocumentRange>& ranges) {
  int64_t last = 0;
  for (const DocumentRange& range : ranges) last = std::max(last, range.last);
  return last;
}

struct ShownDocument {
  int64_t number = 0;
  std::string place;                // file and position, for people
  nlohmann::ordered_json where;     // the same for programs
  std::optional<std::string> text;  // nothing for tokens without a tokenizer
  std::optional<std::vector<int32_t>> tokens;
};

// Prints the text to standard output and its place to standard error, so that `> FILE` writes only the text.
void show_document(Context& context, const InspectDocumentsArgs& args, const ShownDocument& document) {
  const bool ids = document.tokens && (args.tokens || !document.text);
  if (args.json) {
    nlohmann::ordered_json json = {{"document", document.number}};
    json.update(document.where);
    if (document.text) json["text"] = *document.text;
    if (ids) json["tokens"] = *document.tokens;
    fmt::print(context.out, "{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  std::string title = cat("document ", document.number, ", ", document.place);
  if (document.text) title += cat(", ", counted(static_cast<int64_t>(document.text->size()), "byte"));
  if (document.tokens) title += cat(", ", counted(std::ssize(*document.tokens), "token"));
  fmt::print(context.err, "--- {} ---\n", title);
  std::fflush(context.err);
  if (ids)
    fmt::print(context.out, "{}\n", fmt::join(*document.tokens, " "));
  else
    fmt::print(context.out, "{}{}", *document.text, document.text->ends_with('\n') ? "" : "\n");
  std::fflush(context.out);
}

[[noreturn]] void refuse_number(const std::string& name, int64_t documents, int64_t wanted) {
  throw DataError(
      cat(name, " has ", counted(documents, "document"), ", numbered from 0: there is no document ", wanted));
}

void show_of_shards(Context& context, const InspectDocumentsArgs& args, const std::vector<DocumentRange>& ranges) {
  const auto tokenizer = tokenizer_of_shards(args.path, args.tokenizer, context.err);
  const auto data = open_tokens(args.path, tokenizer ? tokenizer->end_of_text() : std::nullopt);
  if (last_of(ranges) >= data->documents()) refuse_number(data->name(), data->documents(), last_of(ranges));
  if (!tokenizer && !args.tokens)
    fmt::print(context.err,
               "there is no tokenizer beside the shards or at the path where it was when they were made: give "
               "--tokenizer FILE to see "
               "text instead of ids\n");
  for (const DocumentRange& range : ranges)
    for (int64_t number = range.first; number <= range.last; ++number) {
      std::vector<int32_t> tokens(static_cast<size_t>(data->length(number)));
      data->read(number, 0, tokens);
      ShownDocument document{number, data->name(), {{"source", data->name()}}, {}, {}};
      if (tokenizer) document.text = tokenizer->decode(tokens);
      document.tokens = std::move(tokens);
      show_document(context, args, document);
    }
}

// Thrown to stop reading a corpus after the last document that was asked for.
struct Enough {};

void show_of_text(Context& context, const InspectDocumentsArgs& args, const std::vector<DocumentRange>& ranges) {
  std::optional<Tokenizer> tokenizer;
  if (!args.tokenizer.empty()) tokenizer = Tokenizer::load(args.tokenizer);
  require<UsageError>(!args.tokens || tokenizer,
                      "witan data inspect --tokens: give the tokenizer of the text, too: "
                      "--tokenizer FILE");
  int64_t number = 0;
  const int64_t last = last_of(ranges);
  const auto visit = [&](const Document& read) {
    if (in_ranges(ranges, number)) {
      const std::string source = read.origin.source->path.string();
      ShownDocument document{number, source, {{"source", source}, {"row", nullptr}}, std::string(read.text), {}};
      if (read.origin.row > 0) {
        document.place += cat(":", read.origin.row);
        document.where["row"] = read.origin.row;
      }
      if (tokenizer) document.tokens = tokenizer->encode_whole(read.text);
      show_document(context, args, document);
    }
    if (number++ == last) throw Enough{};
  };
  try {
    read_corpus(find_sources({args.path}).files, args.corpus, visit);
  } catch (const Enough&) {
    return;
  }
  refuse_number(args.path, number, last);
}

ExitCode inspect_documents(Context& context, const InspectDocumentsArgs& args) {
  const bool shards = names_shards(args.path);
  if (shards && args.documents.empty()) {
    require<UsageError>(!args.json && !args.tokens,
                        "witan data inspect: --json and --tokens show documents: say which with --document N");
    return describe_shards(context, args.path, args.tokenizer);
  }
  const auto ranges = parse_ranges(args.documents.empty() ? "0" : args.documents);
  if (shards)
    show_of_shards(context, args, ranges);
  else
    show_of_text(context, args, ranges);
  return ExitCode::done;
}

}  // namespace

ExitCode describe_shards(Context& context, const std::string& path, const std::string& name) {
  const auto tokenizer = tokenizer_of_shards(path, name, context.err);
  const auto data = open_tokens(path, tokenizer ? tokenizer->end_of_text() : std::nullopt);
  int64_t longest = 0;
  for (int64_t document = 0; document < data->documents(); ++document)
    longest = std::max(longest, data->length(document));
  fmt::print(context.out, "file          {}\nformat        {}\n", data->name(), type_of(*data));
  fmt::print(context.out, "documents     {}\ntokens        {}\n", data->documents(), data->tokens());
  fmt::print(context.out, "per document  {:.1f} tokens on average, {} at most\n",
             static_cast<double>(data->tokens()) / static_cast<double>(std::max<int64_t>(data->documents(), 1)),
             longest);
  print_first_tokens(context.out, *data, tokenizer);
  if (!tokenizer) fmt::print(context.err, "give --tokenizer FILE to see the first text, too\n");
  return ExitCode::done;
}

void add_data_inspect(CLI::App& data, Context& context) {
  const auto args = std::make_shared<InspectDocumentsArgs>();
  CLI::App* command =
      add_command(data, context,
                  {"inspect", "Show documents by number, of text or of token shards, or what shards hold",
                   "Documents count from 0, without empty and unusable ones. Their text goes to standard output, what "
                   "they are to standard error. Of shards without --document, sizes and first tokens are shown.",
                   "witan data inspect data/my\n"
                   "witan data inspect data/my --document 0\n"
                   "witan data inspect rows.jsonl.zst --document 3,10-12 --json\n"
                   "witan data inspect my.txt --tokenizer tokenizer.json --tokens"},
                  [&context, args] { return inspect_documents(context, *args); });
  add_option(*command, "path", args->path,
             "Token shards (PREFIX, PREFIX.bin or PREFIX.idx), or a file or folder of text, JSON Lines (both also .gz, "
             ".zst), Parquet, Arrow, WebDataset (.tar) or MDS")
      .required()
      .type_name("");
  add_option(*command, "--document,--documents", args->documents,
             "Numbers of documents, and ranges of them: 17 or 3,10-12 (default for text: 0)")
      .type_name("N");
  add_option(*command, "--tokenizer", args->tokenizer, "Tokenizer (default: the one that the shards were made with)")
      .type_name("FILE");
  add_flag(*command, "--tokens", args->tokens, "Show the ids of the tokens, with --json beside the text");
  add_flag(*command, "--json", args->json, "A line of JSON for each document");
  add_text_args(*command, args->corpus);
}

}  // namespace witan::cli

// Rules for flags that name data and tokenizers: blends, splits, vocabularies.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/cli/compat/megatron_rules.h"
#include "witan/data/megatron/blend.h"
#include "witan/tokenizer/files/tokenizer_files.h"

namespace witan::cli::rules {
namespace {

// Sets a key to a blend, which is checked.
void set_blend(const std::string& key, const std::string& list, const GivenFlag& given, MegatronSettings& settings) {
  try {
    megatron::parse_blend(list, given.name);
  } catch (const ConfigError& wrong) {
    given.refuse(wrong.what());
  }
  settings.set(key, list, given);
}

std::string read_blend_file(const GivenFlag& given) {
  try {
    return read_file(given.value(), uint64_t{64} << 20);
  } catch (const IoError& unread) {
    given.refuse(unread.what());
  }
}

// Refuses a flag that names a tokenizer beside another such flag.
void refuse_other_tokenizer(const GivenFlag& given, const MegatronSettings& settings, const char* other) {
  if (const std::string* file = settings.value_of(other))
    given.refuse(cat("names a tokenizer, and so does ", other, " ", clipped(*file), ": leave one of them out"));
}

}  // namespace

void data_path(const GivenFlag& given, MegatronSettings& settings) {
  set_blend("data_path", given.list(), given, settings);
}

void train_data_path(const GivenFlag& given, MegatronSettings& settings) {
  set_blend("train_data_path", given.list(), given, settings);
}

void valid_data_path(const GivenFlag& given, MegatronSettings& settings) {
  set_blend("valid_data_path", given.list(), given, settings);
}

void test_data_path(const GivenFlag& given, MegatronSettings& settings) {
  set_blend("test_data_path", given.list(), given, settings);
}

// The file has the words of --data-path, separated by white space.
void data_args_path(const GivenFlag& given, MegatronSettings& settings) {
  if (settings.has("--data-path")) given.refuse("contradicts --data-path; leave one of them out");
  std::istringstream words(read_blend_file(given));
  std::string list;
  for (std::string word; words >> word;) list += (list.empty() ? "" : ",") + word;
  set_blend("data_path", list, given, settings);
}

// The file is {"train": [words], "valid": [words], "test": [words]}; a value may also be a string of words.
void per_split_data_args_path(const GivenFlag& given, MegatronSettings& settings) {
  const std::string text = read_blend_file(given);
  try {
    const Json splits = parse_json(text, given.value());
    for (const char* split : {"train", "valid", "test"}) {
      const auto found = splits.find(split);
      if (found == splits.end() || found->is_null()) continue;
      std::string list;
      std::istringstream spaced(found->is_string() ? found->get<std::string>() : "");
      if (found->is_array())
        for (const Json& word : *found) list += (list.empty() ? "" : ",") + word.get<std::string>();
      for (std::string word; spaced >> word;) list += (list.empty() ? "" : ",") + word;
      if (!list.empty()) set_blend(std::string(split) + "_data_path", list, given, settings);
    }
  } catch (const Json::exception&) {
    given.refuse("must be JSON of the form {\"train\": [words], \"valid\": [words], \"test\": [words]}");
  } catch (const CorruptionError& wrong) {
    given.refuse(wrong.what());
  }
}

void split(const GivenFlag& given, MegatronSettings& settings) {
  std::vector<double> shares;
  const std::string& text = given.value();
  for (size_t begin = 0; begin <= text.size() && shares.size() < 4;) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view piece = std::string_view(text).substr(begin, end - begin);
    while (piece.starts_with(' ')) piece.remove_prefix(1);
    while (piece.ends_with(' ')) piece.remove_suffix(1);
    const auto share = parse_number<double>(piece);
    if (!share || !(*share >= 0 && *share <= 1e15))
      given.refuse("must be up to three shares, of training, validation and test, as 969,30,1");
    shares.push_back(*share);
    begin = end + 1;
  }
  if (shares.size() > 3) given.refuse("must be up to three shares, of training, validation and test, as 969,30,1");
  shares.resize(3);
  const double all = shares[0] + shares[1] + shares[2], held_out = (shares[1] + shares[2]) / all;
  if (all == 0 || (held_out != 0 && !(held_out >= 1e-6 && held_out <= 0.5)))
    given.refuse("validation and test together must be nothing, or from a millionth to half of the data");
  if (held_out != 0) settings.set("held_out_fraction", fmt::format("{}", held_out), given);
  settings.set("split", text, given);
}

void tokenizer_type(const GivenFlag& given, MegatronSettings& settings) {
  for (const char* type : {"HuggingFaceTokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer",
                           "Llama2Tokenizer", "NullTokenizer"})
    if (given.value() == type) return;
  if (given.value() == "GPT2BPETokenizer") {
    if (!settings.value_of("--vocab-file") || !settings.value_of("--merge-file"))
      given.refuse("needs --vocab-file and --merge-file, the files of the tokenizer");
    return;
  }
  given.refuse(
      "tokenizers of this type are not read under Megatron-LM's flags: remove the type and its files, and give "
      "--tokenizer FILE, which is recognised by its content");
}

void tokenizer_model(const GivenFlag& given, MegatronSettings& settings) {
  refuse_other_tokenizer(given, settings, "--tokenizer");
  const fs::path file = given.value();
  std::error_code unreadable;
  if (!fs::exists(file, unreadable))
    given.refuse(
        "there is no such file or folder; names of the Hugging Face hub are not looked up: fetch the tokenizer's files "
        "and give their folder");
  const bool holds_json = fs::is_regular_file(file / "tokenizer.json", unreadable);
  settings.set("tokenizer", (holds_json ? file / "tokenizer.json" : file).string(), given);
}

// --vocab-file and --merge-file are one tokenizer, which is named by the vocabulary alone if its merges are beside it.
void vocab_file(const GivenFlag& given, MegatronSettings& settings) {
  for (const char* other : {"--tokenizer", "--tokenizer-model"}) refuse_other_tokenizer(given, settings, other);
  const std::string* merges = settings.value_of("--merge-file");
  if (!merges) given.refuse("needs --merge-file, the merges of this vocabulary");
  std::error_code none;
  for (const std::string& file : {given.value(), *merges})
    if (!fs::is_regular_file(file, none)) given.refuse(cat("there is no file ", clipped(file)));
  const auto beside = merges_beside(given.value());
  const bool found_alone = beside && fs::equivalent(*beside, *merges, none);
  settings.set("tokenizer", found_alone ? given.value() : cat(given.value(), ",", *merges), given);
}

void merge_file(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.value_of("--vocab-file")) given.refuse("needs --vocab-file, the vocabulary that they merge");
}

}  // namespace witan::cli::rules

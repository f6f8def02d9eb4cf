#include "witan/tokenizer/files/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/formats/gguf.h"
#include "witan/tokenizer/files/tokenizer_json_parts.h"
#include "witan/tokenizer/models/sentencepiece.h"

namespace witan {
namespace {

constexpr uint64_t kFileLimit = uint64_t{256} << 20;  // the largest published files are below 50 MB

// The tokenizer file in a folder, the most precise format first.
fs::path file_in(const fs::path& folder) {
  static constexpr std::array<const char*, 5> kFileNames = {"tokenizer.json", "tekken.json", "tokenizer.model",
                                                            "spiece.model", "vocab.json"};
  for (const char* name : kFileNames)
    if (fs::exists(folder / name)) return folder / name;
  std::vector<fs::path> ranks;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".tiktoken" || entry.path().filename().string().starts_with("tekken_"))
      ranks.push_back(entry.path());
  require<DataError>(ranks.size() == 1, folder.string(),
                     ranks.empty() ? ": the folder contains no tokenizer" : ": the folder contains several rank files",
                     ": expected tokenizer.json, tekken.json, tokenizer.model, vocab.json with merges.txt, or one "
                     ".tiktoken file; give the file's path instead");
  return ranks[0];
}

constexpr const char* kUnknownFormat =
    ": not a tokenizer file that Witan reads: give a tokenizer.json (Hugging Face), a tekken.json (Mistral), a "
    "SentencePiece .model, a rank file (.tiktoken), a vocab.json with its merges.txt, a GGUF file, or a folder with "
    "one of these";

// For files that do not define which tokens go around texts: takes them from the tokenizer_config.json beside the file.
// If add_bos_token is absent, the tokenizer classes of Llama and Gemma in Hugging Face's transformers add one.
TokenizerSpec with_config(TokenizerSpec spec, const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  std::error_code absent;
  if (!fs::is_regular_file(path, absent)) return spec;
  const Json config = parse_json(read_file(path, kFileLimit), path.string());
  require<CorruptionError>(config.is_object(), path.string(), ": not a JSON object");
  const auto text_of = [&](const char* key) {
    const auto found = config.find(key);
    if (found == config.end()) return std::string();
    const Json& text = found->is_object() ? found->value("content", Json()) : *found;
    return text.is_string() ? text.get<std::string>() : std::string();
  };
  const std::string type = text_of("tokenizer_class");
  const bool begins_texts = type.starts_with("Llama") || type.starts_with("CodeLlama") || type.starts_with("Gemma");
  const auto token_of = [&](const char* flag, bool otherwise, const char* key) -> std::optional<int32_t> {
    const auto found = config.find(flag);
    if (!(found != config.end() && found->is_boolean() ? found->get<bool>() : otherwise)) return std::nullopt;
    const std::string text = text_of(key);
    const auto token = std::find(spec.tokens.begin(), spec.tokens.end(), text);
    require<DataError>(!text.empty() && token != spec.tokens.end(), path.string(), ": ", flag, " is true, but ", key,
                       " is not in the vocabulary: set it to a token of the vocabulary, or ", flag, " to false");
    return static_cast<int32_t>(token - spec.tokens.begin());
  };
  const auto first = token_of("add_bos_token", begins_texts, "bos_token");
  put_around_texts(first, token_of("add_eos_token", false, "eos_token"), spec);
  return spec;
}

// "VOCABULARY,MERGES", two files; nothing for any other path.
std::optional<std::pair<fs::path, fs::path>> pair_of_files(const fs::path& given) {
  const std::string text = given.string();
  const size_t comma = text.find(',');
  std::error_code none;
  if (comma == std::string::npos || fs::exists(given, none)) return std::nullopt;
  const fs::path vocabulary = text.substr(0, comma), merges = text.substr(comma + 1);
  if (!fs::is_regular_file(vocabulary, none) || !fs::is_regular_file(merges, none)) return std::nullopt;
  return std::pair(vocabulary, merges);
}

TokenizerSpec read_vocab_and_merges(std::string_view vocabulary, const fs::path& path, const fs::path& merges,
                                    std::string_view pattern) {
  return with_config(
      parse_vocab_and_merges(vocabulary, path.string(), read_file(merges, kFileLimit), merges.string(), pattern),
      path.parent_path());
}

bool begins_with_object(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

}  // namespace

std::optional<fs::path> merges_beside(const fs::path& vocabulary) {
  constexpr std::string_view kVocabulary = "vocab.json", kMerges = "merges.txt";
  std::string name = vocabulary.filename().string();
  if (!name.ends_with(kVocabulary)) return std::nullopt;
  name.replace(name.size() - kVocabulary.size(), kVocabulary.size(), kMerges);
  std::error_code none;
  const fs::path merges = vocabulary.parent_path() / name;
  return fs::is_regular_file(merges, none) ? std::optional(merges) : std::nullopt;
}

TokenizerSpec read_tokenizer(const fs::path& given) {
  if (const auto pair = pair_of_files(given))
    return read_vocab_and_merges(read_file(pair->first, kFileLimit), pair->first, pair->second, "");
  fs::path path = given;
  std::string pattern;
  const std::string text = path.string();
  if (const size_t hash = text.rfind('#'); hash != std::string::npos && !fs::exists(path)) {
    path = text.substr(0, hash);
    pattern = text.substr(hash + 1);
  }
  if (fs::is_directory(path)) path = file_in(path);
  const std::string source = path.string();
  if (is_gguf_file(path)) return parse_gguf_vocabulary(GgufFile(path).metadata());
  std::string bytes = read_file(path, kFileLimit);
  if (looks_like_sentencepiece(bytes))
    return with_config(sentencepiece_spec(std::move(bytes), source), path.parent_path());
  if (looks_like_ranks(bytes)) return with_config(parse_tiktoken(bytes, source, pattern), path.parent_path());
  require<CorruptionError>(begins_with_object(bytes) || path.extension() == ".json", source, kUnknownFormat);
  if (looks_like_tekken(bytes)) return parse_tekken(bytes, source);
  if (const auto merges = merges_beside(path)) return read_vocab_and_merges(bytes, path, *merges, pattern);
  return parse_tokenizer_json(bytes, source);
}

}  // namespace witan

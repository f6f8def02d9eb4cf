#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/tokenizer_files.h"

namespace witan {
namespace {

// Keys that are special tokens in published vocabularies.
bool is_special(std::string_view key) {
  static constexpr std::array<std::string_view, 5> kNames = {"<s>", "</s>", "<pad>", "<unk>", "<mask>"};
  return std::find(kNames.begin(), kNames.end(), key) != kNames.end() ||
         (key.size() > 4 && key.starts_with("<|") && key.ends_with("|>"));
}

}  // namespace

// Builds a tokenizer.json from the two files, so that its reader checks them.
TokenizerSpec parse_vocab_and_merges(std::string_view vocab, std::string_view vocab_source, std::string_view merges,
                                     std::string_view merges_source, std::string_view pattern) {
  const Json tokens = parse_json(vocab, vocab_source);
  require<CorruptionError>(tokens.is_object(), vocab_source,
                           ": not a vocab.json: it must be an object that maps tokens to ids");
  Json added = Json::array();
  for (const auto& [key, id] : tokens.items())
    if (is_special(key)) added.push_back({{"id", id}, {"content", key}, {"special", true}});
  Json listed = Json::array();
  for (int64_t number = 1; !merges.empty(); ++number) {
    const size_t end = merges.find('\n');
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(end == std::string_view::npos ? merges.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    require<CorruptionError>(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos &&
                                 find_invalid_utf8(line) == std::string_view::npos,
                             merges_source, ": line ", number, ", \"", clipped(line),
                             "\", is not two tokens with one space between them");
    listed.push_back(line);
  }
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Json all = {{"added_tokens", added},
                    {"pre_tokenizer", bytes},
                    {"decoder", bytes},
                    {"model", {{"type", "BPE"}, {"vocab", tokens}, {"merges", listed}}}};
  TokenizerSpec spec = parse_tokenizer_json(all.dump(), cat(vocab_source, " and ", merges_source));
  if (!pattern.empty()) spec.patterns = {split_pattern_named(pattern)};
  return spec;
}

}  // namespace witan

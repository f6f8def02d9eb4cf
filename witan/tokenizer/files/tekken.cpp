#include <simdjson.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/base64.h"
#include "witan/tokenizer/files/tokenizer_files.h"

namespace witan {
namespace {

using JsonElement = simdjson::dom::element;

constexpr uint64_t kMostTokens = uint64_t{1} << 24;
constexpr uint64_t kMostSpecials = uint64_t{1} << 16;  // unnamed special tokens take memory, too

// The first special tokens if a file lists none.
constexpr std::array<const char*, 20> kFirstSpecials = {"<unk>",
                                                        "<s>",
                                                        "</s>",
                                                        "[INST]",
                                                        "[/INST]",
                                                        "[AVAILABLE_TOOLS]",
                                                        "[/AVAILABLE_TOOLS]",
                                                        "[TOOL_RESULTS]",
                                                        "[/TOOL_RESULTS]",
                                                        "[TOOL_CALLS]",
                                                        "[IMG]",
                                                        "<pad>",
                                                        "[IMG_BREAK]",
                                                        "[IMG_END]",
                                                        "[PREFIX]",
                                                        "[MIDDLE]",
                                                        "[SUFFIX]",
                                                        "[SYSTEM_PROMPT]",
                                                        "[/SYSTEM_PROMPT]",
                                                        "[TOOL_CONTENT]"};

template <class Value>
Value value_at(const JsonElement& object, const char* key, std::string_view source, const std::string& where) {
  Value value{};
  require<CorruptionError>(object[key].get(value) == simdjson::SUCCESS, source, ": ", where, key,
                           " is missing or of the wrong type; download the file again");
  return value;
}

void read_special_tokens(const JsonElement& root, uint64_t count, std::string_view source, TokenizerSpec& spec) {
  std::vector<std::string> names(kFirstSpecials.begin(), kFirstSpecials.end());
  simdjson::dom::array listed;
  if (root["special_tokens"].get(listed) == simdjson::SUCCESS) {
    names.clear();
    for (const JsonElement each : listed) {
      const std::string where = cat("special_tokens[", names.size(), "].");
      const auto rank = value_at<uint64_t>(each, "rank", source, where);
      require<CorruptionError>(rank == names.size(), source, ": ", where, "rank is ", rank, " instead of ",
                               names.size());
      names.emplace_back(value_at<std::string_view>(each, "token_str", source, where));
      require<CorruptionError>(!names.back().empty(), source, ": ", where, "token_str is empty");
    }
  }
  require<CorruptionError>(names.size() <= count, source, ": there are ", names.size(),
                           " special tokens, more than config.default_num_special_tokens = ", count);
  while (names.size() < count) names.push_back(cat("<SPECIAL_", names.size(), ">"));
  for (std::string& name : names) {
    spec.added.push_back({.id = static_cast<int32_t>(spec.tokens.size()), .text = name, .in_model = false});
    spec.tokens.push_back(std::move(name));
  }
}

}  // namespace

bool looks_like_tekken(std::string_view text) {
  return text.substr(0, 4096).find("\"default_num_special_tokens\"") != std::string_view::npos ||
         text.substr(text.size() - std::min<size_t>(text.size(), 4096)).find("\"default_num_special_tokens\"") !=
             std::string_view::npos;
}

TokenizerSpec parse_tekken(std::string_view text, std::string_view source) {
  simdjson::dom::parser parser;
  JsonElement root;
  auto error = parser.allocate(text.size(), 64);
  if (!error) error = parser.parse(text.data(), text.size()).get(root);
  if (error) {
    parse_json(text, source);  // throws with the byte and the reason
    throw CorruptionError(cat(source, ": not valid JSON (", simdjson::error_message(error), ")"));
  }
  require<CorruptionError>(root.is_object() && root["config"].is_object(), source,
                           ": not a tekken.json: it must be an object with a \"config\"");
  const JsonElement config = root["config"].value();
  const auto size = value_at<uint64_t>(config, "default_vocab_size", source, "config.");
  const auto specials = value_at<uint64_t>(config, "default_num_special_tokens", source, "config.");
  require<CorruptionError>(specials <= size && specials <= kMostSpecials && size < kMostTokens, source,
                           ": config.default_vocab_size is ", size, " and config.default_num_special_tokens ",
                           specials);
  TokenizerSpec spec;
  read_special_tokens(root, specials, source, spec);
  spec.patterns = {std::string(value_at<std::string_view>(config, "pattern", source, "config."))};
  std::vector<int32_t> ids;
  for (const JsonElement each : value_at<simdjson::dom::array>(root, "vocab", source, "")) {
    if (spec.tokens.size() == size) break;  // the file may have more ranks than the tokenizer uses
    const std::string where = cat("vocab[", ids.size(), "].");
    const auto rank = value_at<uint64_t>(each, "rank", source, where);
    require<CorruptionError>(rank == ids.size(), source, ": ", where, "rank is ", rank, " instead of ", ids.size());
    auto bytes = from_base64(value_at<std::string_view>(each, "token_bytes", source, where));
    require<CorruptionError>(bytes && !bytes->empty(), source, ": ", where, "token_bytes is not base64 of a token");
    ids.push_back(static_cast<int32_t>(spec.tokens.size()));
    spec.tokens.push_back(*std::move(bytes));
  }
  require<CorruptionError>(spec.tokens.size() == size, source, ": vocab has ", ids.size(),
                           " tokens, too few for config.default_vocab_size = ", size);
  complete_ranks(spec, ids, source);
  return spec;
}

}  // namespace witan

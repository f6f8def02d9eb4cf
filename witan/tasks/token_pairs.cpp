#include "witan/tasks/token_pairs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// bos_token of tokenizer_config.json, a string or an object with the string as "content".
std::string bos_token_in(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  std::error_code none;
  if (!fs::exists(file, none)) return "";
  const Json config = parse_json(read_file(file), file.string());
  if (!config.is_object() || !config.contains("bos_token")) return "";
  const Json& token = config["bos_token"];
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() && token.contains("content") && token["content"].is_string()
             ? token["content"].get<std::string>()
             : "";
}

// Python's str.isspace(), for ASCII.
bool is_white(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

}  // namespace

PairEncoder::PairEncoder(const Tokenizer& tokenizer, const fs::path& hf, int64_t max_length)
    : tokenizer_(tokenizer), max_length_(max_length), before_(tokenizer.spec().before) {
  const std::string bos = bos_token_in(hf);
  if (!bos.empty()) beginning_ = tokenizer.token_id(bos);
  if (!beginning_ && !before_.empty()) beginning_ = before_.front();
  if (!beginning_) beginning_ = tokenizer.end_of_text();
}

std::vector<int32_t> PairEncoder::encoded(const std::string& text) const {
  std::vector<int32_t> tokens;
  const bool begins = beginning_ && text.starts_with(tokenizer_.token_bytes(*beginning_));
  if (!begins) tokens = before_;
  tokenizer_.encode_to(text, tokens, true);
  return tokens;
}

TokenPair PairEncoder::encode(std::string context, std::string continuation) const {
  TokenPair pair;
  size_t context_tokens = 1;
  if (context.empty()) {
    require<DataError>(beginning_.has_value(),
                       "a question has no context, and the tokenizer no token for the "
                       "beginning or end of a text to put before its answers: write a doc_to_text that is not empty");
    tokenizer_.encode_to(continuation, pair.tokens, true);
    if (pair.tokens.empty() || pair.tokens.front() != *beginning_) pair.tokens.insert(pair.tokens.begin(), *beginning_);
  } else {
    size_t end = context.size();
    while (end > 0 && is_white(context[end - 1])) --end;
    continuation.insert(0, context.substr(end));
    context.resize(end);
    pair.tokens = encoded(context + continuation);
    context_tokens = std::min(encoded(context).size(), pair.tokens.size());
  }
  pair.continuation = static_cast<int64_t>(pair.tokens.size() - context_tokens);
  require<DataError>(pair.continuation > 0, "the answer ", clipped(continuation), " has no tokens of its own after ",
                     clipped(context));
  require<DataError>(pair.continuation <= max_length_, "an answer has ", pair.continuation,
                     " tokens, and the model reads ", max_length_, ": give a larger --max-length or leave the row out");
  // The last token is not read, only predicted.
  const auto most = static_cast<size_t>(max_length_) + 1;
  pair.truncated = pair.tokens.size() > most;
  if (pair.truncated) pair.tokens.erase(pair.tokens.begin(), pair.tokens.end() - static_cast<ptrdiff_t>(most));
  require<DataError>(static_cast<int64_t>(pair.tokens.size()) > pair.continuation,
                     "an answer begins without any token before it: write a doc_to_text that is not only white space");
  return pair;
}

}  // namespace witan

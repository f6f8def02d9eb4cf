#include "witan/tokenizer/training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/byte_alphabet.h"
#include "witan/tokenizer/training/pair_counts.h"

namespace witan {
namespace {

constexpr int64_t kByteTokens = 256;
constexpr int64_t kLargestVocabulary = 1 << 24;

std::string pattern_named(const std::string& name) {
  if (name == "llama3") return std::string(kLlama3Pattern);
  if (name == "gpt2") return std::string(kGpt2Pattern);
  if (name == "qwen2") return std::string(kQwen2Pattern);
  throw ConfigError(cat("tokenizer_pattern = ", name, ": must be llama3, gpt2 or qwen2"));
}

void check(const BpeTrainerConfig& config) {
  std::set<std::string> seen;
  for (const std::string& token : config.special_tokens) {
    require<ConfigError>(!token.empty(), "a special token must not be empty");
    require<ConfigError>(find_invalid_utf8(token) == std::string::npos, "a special token is not valid UTF-8");
    require<ConfigError>(seen.insert(token).second, "the special token ", token, " is given twice");
  }
  const int64_t least = kByteTokens + static_cast<int64_t>(config.special_tokens.size());
  require<ConfigError>(config.vocab_size >= least && config.vocab_size <= kLargestVocabulary,
                       "tokenizer_vocab_size = ", config.vocab_size, ": must be from ", least, " (256 bytes and ",
                       config.special_tokens.size(), " special tokens) to ", kLargestVocabulary);
}

// The growing vocabulary.
class Vocabulary {
 public:
  Vocabulary() {
    for (const uint8_t byte : byte_alphabet_order()) id_of(std::string(1, static_cast<char>(byte)));
  }
  // The id of the token with these bytes, which is new unless another merge produced the same bytes.
  int32_t id_of(const std::string& bytes) {
    const auto [place, added] = ids_.try_emplace(bytes, static_cast<int32_t>(tokens_.size()));
    if (added) tokens_.push_back(bytes);
    return place->second;
  }
  int32_t merged(Pair pair) {
    return id_of(tokens_[static_cast<size_t>(pair.left)] + tokens_[static_cast<size_t>(pair.right)]);
  }
  bool contains(const std::string& bytes) const { return ids_.contains(bytes); }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::vector<std::string> take() && { return std::move(tokens_); }

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

Fields BpeTrainerConfig::fields() {
  return {
      Field{"tokenizer_vocab_size", &vocab_size,
            "Vocabulary size of the tokenizer that is trained, special tokens included"}
          .between(kByteTokens + 1, static_cast<double>(kLargestVocabulary)),
      Field{"tokenizer_pattern", &pattern, "Pattern that splits text into pre-tokens"}.one_of(
          {"llama3", "gpt2", "qwen2"}),
      Field{"tokenizer_min_frequency", &min_frequency,
            "Least number of occurrences for a pair to be merged into a token"}
          .at_least(1),
  };
}

BpeTrainer::BpeTrainer(BpeTrainerConfig config)
    : config_(std::move(config)), pretokenizer_({pattern_named(config_.pattern)}) {
  check(config_);
}

void BpeTrainer::add(std::string_view document) {
  pretokenizer_.split(document, [this](std::string_view word) {
    if (const auto known = words_.find(word); known != words_.end())
      ++known->second;
    else
      words_.emplace(word, 1);
  });
}

Tokenizer BpeTrainer::train(const Progress& progress) const {
  Vocabulary vocabulary;
  std::array<int32_t, 256> byte_id{};
  for (size_t id = 0; id < byte_id.size(); ++id) byte_id[byte_alphabet_order()[id]] = static_cast<int32_t>(id);

  PairCounts pairs(config_.min_frequency);
  for (const auto& [word, count] : words_) pairs.add_word(word, byte_id, count);
  pairs.start();

  TokenizerSpec spec;
  const int64_t size = config_.vocab_size - static_cast<int64_t>(config_.special_tokens.size());
  while (vocabulary.size() < size) {
    const auto pair = pairs.most_frequent();
    if (!pair) break;
    const int32_t result = vocabulary.merged(*pair);
    pairs.merge(*pair, result);
    spec.merges.push_back({pair->left, pair->right, result});
    if (progress) progress(vocabulary.size() - kByteTokens, size - kByteTokens);
  }

  for (const std::string& text : config_.special_tokens) {
    const auto bytes = from_byte_alphabet(text);
    require<ConfigError>(
        !bytes || !vocabulary.contains(*bytes), "the special token \"", text,
        "\" could also be a pre-token of ordinary text; choose one that cannot, such as <|endoftext|>");
  }
  spec.tokens = std::move(vocabulary).take();
  for (const std::string& text : config_.special_tokens) {
    spec.added.push_back({static_cast<int32_t>(spec.tokens.size()), text});
    spec.tokens.push_back(text);
  }
  spec.patterns = {pattern_named(config_.pattern)};
  return Tokenizer(std::move(spec));
}

Tokenizer train_bpe(const BpeTrainerConfig& config,
                    const std::function<std::optional<std::string_view>()>& next_document,
                    const BpeTrainer::Progress& progress) {
  BpeTrainer trainer(config);
  while (const auto document = next_document()) trainer.add(*document);
  return trainer.train(progress);
}

}  // namespace witan

#include "witan/train/data/validation_sets.h"

#include "witan/base/error.h"
#include "witan/data/corpus/corpus.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/datasets/token_dataset.h"
#include "witan/data/prepare/text_encoder.h"
#include "witan/train/data/run_data.h"
#include "witan/train/data/run_samples.h"
#include "witan/train/data/run_tokenizer.h"

namespace witan {
namespace {

constexpr uint64_t kSetSeed = 1234;  // for packing, so that a set is packed alike in every run

// Opens prepared tokens, which stay in their files.
ValidationSet open_validation_set(const std::string& name, const fs::path& path, const DataConfig& config,
                                  const Tokenizer& tokenizer, bool begun) {
  const auto warnings = check_shard_tokenizer(path, "validation set " + name, config, tokenizer, begun);
  const auto tokens = open_tokens(path, tokenizer.end_of_text());
  require_kind_of_shards(config, *tokens);
  ValidationSet set{name, open_samples(tokens, config, kSetSeed, false)};
  for (const std::string& warning : warnings) set.warnings.push_back(cat(name, ": ", warning));
  for (const std::string& cut : describe_packing(*set.samples)) set.warnings.push_back(cat(name, ": ", cut));
  return set;
}

ValidationSet tokenize_validation_set(const std::string& name, const std::vector<fs::path>& files,
                                      const DataConfig& config, const Tokenizer& tokenizer,
                                      std::shared_ptr<const ConversationFormat> format) {
  CorpusOptions options = corpus_options(config);
  options.conversations = std::move(format);
  const Sources sources = find_sources(files);
  check_encoding(sources.files, options);
  const TextEncoder encoder = text_encoder(std::make_shared<const Tokenizer>(tokenizer));
  auto tokens = std::make_shared<TokensInMemory>(name);
  const CorpusStatistics corpus = read_corpus(sources.files, options, [&](const Document& document) {
    if (options.conversations) {
      EncodedConversation encoded = encode_conversation(document.conversation(), encoder.encode_chat);
      return tokens->add(std::move(encoded.tokens), std::move(encoded.loss));
    }
    std::vector<int32_t> ids;
    encoder.encode(document.text, ids);
    if (encoder.end_of_text) ids.push_back(*encoder.end_of_text);
    tokens->add(std::move(ids));
  });
  ValidationSet set{name, nullptr};
  set.samples = open_samples(tokens, config, kSetSeed, false);
  for (const std::string& loss : describe_losses(corpus)) set.warnings.push_back(cat(name, ": ", loss));
  for (const std::string& cut : describe_packing(*set.samples)) set.warnings.push_back(cat(name, ": ", cut));
  return set;
}

// Adds the name of the set to errors about its files.
template <class Body>
auto naming_set(const std::string& name, Body&& body) {
  const auto named = [&](const Error& error) { return cat("valid_data: ", name, ": ", error.what()); };
  try {
    return body();
  } catch (const DataError& error) {
    throw DataError(named(error));
  } catch (const CorruptionError& error) {
    throw CorruptionError(named(error), error.code());
  } catch (const IoError& error) {
    throw IoError(named(error), error.code());
  }
}

}  // namespace

ValidationSet read_validation_set(const std::string& name, const std::vector<fs::path>& files, const DataConfig& config,
                                  const Tokenizer& tokenizer, std::shared_ptr<const ConversationFormat> format,
                                  bool begun) {
  if (files.size() == 1 && names_tokens(files.front()))
    return open_validation_set(name, files.front(), config, tokenizer, begun);
  return tokenize_validation_set(name, files, config, tokenizer, std::move(format));
}

std::vector<ValidationSet> read_validation_sets(const DataConfig& config, const Tokenizer& tokenizer,
                                                std::shared_ptr<const ConversationFormat> format, bool begun) {
  std::vector<ValidationSet> sets;
  for (const auto& [name, file] : parse_validation_sets(config.valid_data))
    naming_set(name, [&, &file = file] {
      sets.push_back(read_validation_set(name, {file}, config, tokenizer, format, begun));
    });
  return sets;
}

void check_validation_text(const DataConfig& config) {
  for (const auto& [name, file] : parse_validation_sets(config.valid_data)) {
    if (names_tokens(file)) continue;
    naming_set(name, [&, &file = file] {
      const std::vector<Source> files = find_sources({file}).files;
      require<DataError>(total_bytes(files) > 0, file, " is empty: there is no text");
      check_encoding(files, corpus_options(config));
    });
  }
}

}  // namespace witan

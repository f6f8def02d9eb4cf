#include "witan/train/data/run_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/files/output_file.h"
#include "witan/base/hash.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/data/megatron/blend.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/train/data/mixture_data.h"

namespace witan {
namespace {

constexpr const char* kRecordFormat = "witan-tokenizer-record";
constexpr int kRecordVersion = 1;  // increases when the same text and options give another tokenizer
constexpr uint64_t kMostRecordBytes = 1 << 30;

// Everything that the trained tokenizer depends on.
nlohmann::json training_key(BpeTrainerConfig config, const std::vector<Source>& sources, const CorpusOptions& options) {
  nlohmann::json trainer = {{"special_tokens", config.special_tokens}, {"text_bytes", kTokenizerText}};
  for (const Field& field : config.fields()) trainer[field.name] = field.text();
  return {{"sources", sources_key(sources)}, {"options", options_key(options)}, {"trainer", trainer}};
}

std::string hash_of(const fs::path& path) {
  const MappedFile file(path);
  return hash_hex(file.bytes().data(), file.bytes().size());
}

// The record beside the tokenizer; nothing if it is missing, cannot be read, or is in another format.
std::optional<nlohmann::json> read_record(const fs::path& path) try {
  const fs::path record_path = tokenizer_record(path);
  const nlohmann::json record = parse_json(read_file(record_path, kMostRecordBytes), record_path.string());
  const bool ours = record.at("format") == kRecordFormat && record.at("version") == kRecordVersion &&
                    record.contains("key") && record.contains("xxh3_128");
  return ours ? std::optional(record) : std::nullopt;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
} catch (const CorruptionError&) {
  return std::nullopt;
} catch (const IoError&) {
  return std::nullopt;
}

// Whether the file is unchanged since it was trained with this key.
bool is_trained_from(const fs::path& path, const nlohmann::json& key) {
  const auto record = read_record(path);
  return record && record->at("key") == key && fs::is_regular_file(path) && record->at("xxh3_128") == hash_of(path);
}

struct NamedShards {
  std::string key;
  fs::path shards;
};

// All shards that data_path, or train_data_path, valid_data_path and test_data_path, name.
std::vector<NamedShards> shards_of_run(const DataConfig& config) {
  std::vector<NamedShards> all;
  const auto add = [&](const std::string& list, const char* key) {
    if (list.empty()) return;
    for (const std::string& prefix : megatron::parse_blend(list, key).prefixes)
      for (const fs::path& shards : shards_of(prefix)) all.push_back({key, shards});
  };
  if (!config.megatron_samples() && !is_mixture(config)) {
    if (!config.data_path.empty()) all.push_back({"data_path", config.data_path});
    return all;
  }
  add(config.data_path, "data_path");
  add(config.train_data_path, "train_data_path");
  add(config.valid_data_path, "valid_data_path");
  add(config.test_data_path, "test_data_path");
  return all;
}

}  // namespace

fs::path tokenizer_record(const fs::path& path) {
  return path.parent_path() / cat(path.stem().string(), ".record.json");
}

void check_own_tokenizer(const fs::path& path, const std::string& option) {
  const auto record = read_record(path);
  if (!record) refuse_existing(tokenizer_record(path), option);
  const bool own = record && (record->at("xxh3_128").is_null() || !fs::is_regular_file(path) ||
                              record->at("xxh3_128") == hash_of(path));
  if (!own) refuse_existing(path, option);
}

uint64_t total_bytes(const std::vector<Source>& sources) {
  uint64_t bytes = 0;
  for (const Source& source : sources) bytes += source.bytes;
  return bytes;
}

Tokenizer train_tokenizer(const BpeTrainerConfig& config, const std::vector<Source>& sources,
                          const CorpusOptions& options, Progress& progress) {
  const double start = progress.now();
  BpeTrainer trainer(config);
  uint64_t used = 0;
  TaskProgress counting(progress, "reading text", static_cast<double>(std::max<uint64_t>(total_bytes(sources), 1)),
                        "B");
  read_corpus(sources, options, [&](const Document& document) {
    if (used < kTokenizerText) trainer.add(document.text);
    used += document.text.size();
    counting.update(static_cast<double>(document.source_bytes));
  });
  TaskProgress merging(progress, "training the tokenizer", static_cast<double>(config.vocab_size), "merges");
  Tokenizer tokenizer = trainer.train([&](int64_t done, int64_t) { merging.update(static_cast<double>(done)); });
  progress.note(cat("tokenizer    byte-level BPE of ", tokenizer.vocab_size(), " entries, trained on ",
                    format_bytes(static_cast<double>(std::min(used, kTokenizerText))), " of text in ",
                    format_duration(progress.now() - start)));
  if (tokenizer.vocab_size() < config.vocab_size)
    progress.note(
        cat("warning: the tokenizer has ", tokenizer.vocab_size(), " entries, not the ", config.vocab_size,
            " that were asked for: no other pair occurs ", counted(config.min_frequency, "time"),
            " in its words. For more entries give more text",
            config.min_frequency > 1 ? ", or a smaller minimum (tokenizer_min_frequency, --min-frequency)" : ""));
  return tokenizer;
}

Tokenizer trained_tokenizer(const fs::path& path, const BpeTrainerConfig& config, const std::vector<Source>& sources,
                            const CorpusOptions& options, Progress& progress) {
  const nlohmann::json key = training_key(config, sources, options);
  if (is_trained_from(path, key)) {
    Tokenizer tokenizer = Tokenizer::load(path);
    progress.note(cat("tokenizer    byte-level BPE of ", tokenizer.vocab_size(), " entries, ", path.string(),
                      " (trained before)"));
    return tokenizer;
  }
  if (fs::exists(path))
    progress.note(
        cat("tokenizer    trained anew: ", path.string(), " was not trained on this text with these options"));
  create_folders(path.parent_path());
  nlohmann::json record = {{"format", kRecordFormat}, {"version", kRecordVersion}, {"key", key}, {"xxh3_128", nullptr}};
  // The old record would not fit the new tokenizer. A record without a hash fits no file, but shows that the path is
  // ours.
  write_file_atomically(tokenizer_record(path), record.dump(1) + "\n");
  Tokenizer tokenizer = [&] {
    try {
      return train_tokenizer(config, sources, options, progress);
    } catch (...) {
      std::error_code none;
      if (!fs::exists(path, none)) fs::remove(tokenizer_record(path), none);
      throw;
    }
  }();
  tokenizer.save(path);
  record["xxh3_128"] = hash_of(path);
  write_file_atomically(tokenizer_record(path), record.dump(1) + "\n");
  return tokenizer;
}

std::vector<std::string> check_shard_tokenizer(const fs::path& shards, const std::string& key, const DataConfig& config,
                                               const Tokenizer& tokenizer, bool begun) {
  const std::string name = begun || config.tokenizer.empty() ? "the run's tokenizer" : config.tokenizer;
  const auto found = find_tokenizer_mismatch(shards, tokenizer, name);
  if (!found) return {};
  require<ConfigError>(begun || !found->certain, key, ": ", found->message, ". Give the tokenizer of the shards, ",
                       found->own.empty() ? "whose hash `witan tokenizer inspect FILE` shows" : found->own,
                       ", or tokenize the text with this one, to shards of another name (`witan data`)");
  return {found->message};
}

std::vector<std::string> check_shard_tokenizers(const DataConfig& config, const Tokenizer& tokenizer, bool begun) {
  std::vector<std::string> warnings;
  for (const auto& [key, shards] : shards_of_run(config))
    std::ranges::move(check_shard_tokenizer(shards, key, config, tokenizer, begun), std::back_inserter(warnings));
  return warnings;
}

}  // namespace witan

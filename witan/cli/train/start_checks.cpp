#include "witan/cli/train/start_checks.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/datasets/token_dataset.h"
#include "witan/train/data/least_text.h"
#include "witan/train/data/mixture_data.h"
#include "witan/train/data/run_data.h"
#include "witan/train/data/run_tokenizer.h"
#include "witan/train/data/validation_sets.h"
#include "witan/train/state/named_checkpoint.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/state/run_start.h"
#include "witan/train/step/reference.h"
#include "witan/train/weights/initial_weights.h"
#include "witan/train/weights/upcycle.h"

namespace witan::cli {
namespace {

std::shared_ptr<const Tokenizer> find_given_tokenizer(const ResolvedConfig& config, const fs::path& run_folder,
                                                      bool keeps) {
  const fs::path own = run_folder / "tokenizer.json";
  if (keeps && fs::exists(own)) return std::make_shared<Tokenizer>(Tokenizer::load(own));
  if (config->data.tokenizer.empty()) return nullptr;
  return std::make_shared<Tokenizer>(Tokenizer::load(config->data.tokenizer));
}

std::string describe_tokenizer(const ResolvedConfig& config, const Tokenizer* tokenizer) {
  if (!tokenizer)
    return cat("tokenizer    would be trained on the text, with at most ", config->data.bpe.vocab_size, " entries");
  return cat("tokenizer    ", tokenizer->vocab_size(), " entries",
             config->data.tokenizer.empty() ? "" : ", " + config->data.tokenizer);
}

// How many samples there are, and how many epochs the run reads.
std::string describe_samples(const ResolvedConfig& config, const RunData& data) {
  const int64_t taken = config->batch_ramp().consumed_by(config->train.train_iters);
  const std::vector<SourceUse> uses = data.train->use_of(taken);
  std::string line = fmt::format("samples      {} of {} tokens to train on, {} for validation; the run reads ",
                                 data.train->per_epoch(), config->data.seq_length, data.held_out->per_epoch());
  if (uses.size() < 2)
    return line + fmt::format("{:.2f} epochs",
                              uses.empty() ? static_cast<double>(taken) / static_cast<double>(data.train->per_epoch())
                                           : uses[0].epochs);
  for (size_t i = 0; i < uses.size(); ++i)
    line += fmt::format("{}{:.2f} epochs of {} ({:.1f} % of its samples)", i == 0 ? "" : ", ", uses[i].epochs,
                        uses[i].name, 100 * static_cast<double>(uses[i].samples) / static_cast<double>(taken));
  return line;
}

// Opening Megatron-Core's samples may write index files, so only the files of the shards are checked.
std::string describe_megatron_shards(const DataConfig& data) {
  int64_t found = 0;
  for (const std::string* paths : {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path})
    for (const fs::path& path : paths_of({*paths})) {
      const std::string text = path.string();
      const bool is_weight = !text.empty() && text.find_first_not_of("0123456789.eE+-") == std::string::npos;
      if (text.empty() || is_weight) continue;
      for (const char* suffix : {".bin", ".idx"})
        require<DataError>(fs::is_regular_file(text + suffix), text, suffix, ": there is no such file");
      ++found;
    }
  return cat("shards       ", counted(found, "dataset"),
             "; samples in Megatron-Core's order are counted by the run itself");
}

// Checks text that has not been tokenized as far as its size and bytes allow, and reports what only its tokens show.
void check_text(const DataConfig& data, const Tokenizer* tokenizer, FoundData& found) {
  const Sources sources = find_sources(data.data.empty() ? default_corpus() : paths_of({data.data}));
  std::string line = cat("text         ", counted(static_cast<int64_t>(sources.files.size()), "file"), ", ",
                         format_bytes(static_cast<double>(total_bytes(sources.files))), ", to be tokenized");
  if (!sources.skipped.empty()) line += "; left out: " + describe_skipped(sources.skipped);
  found.lines.push_back(line);
  for (const TextToTokenize& text : texts_to_tokenize(data, sources, {})) {
    require_text(text);
    require_enough_text(text.place, text.sources.files, data, tokenizer);
  }
  found.lines.push_back(cat("not checked  whether its rows are usable",
                            data.sft ? ""
                                     : cat(", and whether it has the ", least_tokens_of_splits(data),
                                           " tokens that a sample to train on and one for validation need"),
                            ": text is not tokenized here"));
}

void check_validation_sets(const ResolvedConfig& config, const Tokenizer* tokenizer, bool keeps, FoundData& found) {
  const DataConfig& data = config->data;
  if (data.valid_data.empty()) return;
  check_validation_text(data);
  require_enough_validation_text(data, tokenizer);
  if (!tokenizer || data.sft) {
    found.lines.push_back(cat("not checked  whether each set of valid_data has ",
                              data.sft ? std::string("a conversation to learn from")
                                       : cat("the ", least_tokens_of_set(data), " tokens of a sample"),
                              ": it is not tokenized here"));
    return;
  }
  for (const ValidationSet& set : read_validation_sets(data, *tokenizer, nullptr, keeps))
    found.lines.push_back(cat("validation   ", set.name, ": ", counted(set.samples->per_epoch(), "sample")));
}

// "remove --init-from", or "remove init_from (base.toml:3)" if the key comes from a file.
std::string without(const GivenConfig& given, const std::string& key) {
  const std::string place = given.place(key);
  return cat("remove ", place.starts_with("--") ? place : cat(key, " (", place, ")"));
}

bool is_within(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !place.empty() && *place.begin() != "..";
}

}  // namespace

void require_usable_folder(const fs::path& run_folder) {
  require<ConfigError>(!is_training(run_folder), "another process trains or imports ", run_folder.string(),
                       ": wait for it, or pick another name with --run");
  std::error_code error;
  fs::path there = fs::absolute(run_folder, error).lexically_normal();
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  require<IoError>(fs::is_directory(there, error), "cannot create the run folder ", run_folder.string(), ": ",
                   there.string(), " is not a folder");
  const int why = ::access(there.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
  require<IoError>(why == 0, "cannot write to the run folder ", run_folder.string(), ": ", there.string(), ": ",
                   std::strerror(why));
}

FoundData find_data(const ResolvedConfig& config, const fs::path& run_folder, bool keeps) {
  const DataConfig& data = config->data;
  FoundData found;
  found.tokenizer = find_given_tokenizer(config, run_folder, keeps);
  found.lines.push_back(describe_tokenizer(config, found.tokenizer.get()));
  found.held_out = config->train.eval_iters * config->train.global_batch_size;
  if (found.tokenizer) batch_options(data, *found.tokenizer);
  const fs::path tokens = run_folder / "data" / "tokens";
  const bool has_tokens = keeps && (fs::exists(tokens.string() + ".idx") || is_mixture(data));
  if (found.tokenizer && data.reads_shards())
    for (const std::string& warning : check_shard_tokenizers(data, *found.tokenizer, keeps))
      found.lines.push_back("warning: " + warning);
  if (data.megatron_samples()) {
    found.lines.push_back(describe_megatron_shards(data));
  } else if (found.tokenizer && (data.reads_shards() || has_tokens)) {
    const RunData opened =
        open_run_data(config, found.tokenizer, data.reads_shards() ? fs::path(data.data_path) : tokens);
    found.held_out = opened.held_out->per_epoch();
    found.lines.push_back(describe_samples(config, opened));
  } else {
    check_sources(data);
    check_text(data, found.tokenizer.get(), found);
  }
  check_validation_sets(config, found.tokenizer.get(), keeps, found);
  return found;
}

FirstWeights check_first_weights(const ResolvedConfig& config) {
  FirstWeights found;
  if (!config->train.init_from.empty()) {
    const InitialWeights weights(*config);
    found = {weights.source().where(), weights.warnings()};
    if (const auto* run = dynamic_cast<const CheckpointWeights*>(&weights.source())) verify_if_cheap(run->checkpoint());
  }
  if (config->train.upcycle.empty()) return found;
  const auto take = [&](const Checkpoint& dense) {
    found.from = dense.folder.string();
    verify_if_cheap(dense);
  };
  if (config->data.tokenizer.empty()) {
    take(check_dense_model(*config, found.warnings));
  } else {
    const Upcycling upcycling(*config);
    found.warnings = upcycling.warnings();
    take(upcycling.dense());
  }
  return found;
}

FirstWeights check_reference(const ResolvedConfig& config) {
  if (config->reference() != ReferenceKind::source) return {};
  const RunConfig reference = Reference::config_of(*config);
  const InitialWeights weights(reference, "reference");
  if (const auto* run = dynamic_cast<const CheckpointWeights*>(&weights.source())) verify_if_cheap(run->checkpoint());
  return {weights.source().where(), weights.warnings()};
}

void require_other_source(const GivenConfig& given) {
  const TrainConfig& train = given.config.train;
  std::error_code none;
  if (!fs::exists(given.run, none)) return;
  for (const auto& [key, source] : {std::pair("init_from", train.init_from), std::pair("upcycle", train.upcycle)})
    require<ConfigError>(source.empty() || !is_within(folder_of_weights(source, train.runs_folder), given.run), key,
                         " = ", source, ": --fresh would archive the run ", given.run.string(),
                         ", which has these weights: give the new run another name (--run NAME)");
}

void keep_first_weights(GivenConfig& given) {
  if (!given.saved || step_folders(given.run / "checkpoints").empty()) return;
  const TrainConfig &begun = given.saved->train, &asked = given.config.train;
  require<ConfigError>(!is_imported_only(given.run) || (asked.init_from.empty() && asked.upcycle.empty()),
                       not_resumable(given.run));
  const bool from_weights = !begun.init_from.empty() || !begun.upcycle.empty();
  const std::string from = from_weights ? cat("from ", begun.init_from, begun.upcycle) : "with random weights";
  for (std::string TrainConfig::*const key : {&TrainConfig::init_from, &TrainConfig::upcycle}) {
    std::string& now = given.config.train.*key;
    const std::string &then = begun.*key, name = key == &TrainConfig::upcycle ? "upcycle" : "init_from";
    require<ConfigError>(now.empty() || now == then, name, " = ", now, ": the run ", given.run.string(), " was begun ",
                         from, ", and is resumed from its own checkpoint: ", without(given, name),
                         ", give the new run another name (--run NAME), or start over with `witan train --fresh`");
    now = then;
  }
  given.config.train.init_state = begun.init_state;
}

}  // namespace witan::cli

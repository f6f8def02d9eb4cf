#include "witan/train/loop/load_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "witan/base/error.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/texts.h"
#include "witan/convert/import.h"
#include "witan/tensor/trace_context.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/train/data/data_fingerprint.h"
#include "witan/train/state/named_checkpoint.h"
#include "witan/train/state/rewinds.h"
#include "witan/train/step/objective.h"
#include "witan/train/weights/kept_reference.h"
#include "witan/train/weights/upcycle.h"

namespace witan {
namespace {

std::vector<int64_t> samples_of(const std::vector<SourceUse>& uses) {
  std::vector<int64_t> samples;
  for (const SourceUse& use : uses) samples.push_back(use.samples);
  return samples;
}

// Whether ids stand for other tokens than in the run's tokenizer. Comparing the files' bytes is not enough: one
// tokenizer may be written in several ways. A tokenizer that cannot be read counts as another one.
template <class Read>
bool has_other_tokens(Read read, const std::string& own) try {
  return match_vocabularies(read(), parse_tokenizer_json(own, "tokenizer.json")).different > 0;
} catch (const Error&) {
  return true;
}

}  // namespace

TrainState StateLoader::begin() {
  TrainState state;
  if (run_.start.from) {
    state = resume(*run_.start.from);
  } else {
    if (!run_.config->train.upcycle.empty())
      upcycle();
    else if (!run_.config->train.init_from.empty())
      take_weights();
    state.data = fingerprint();
  }
  begin_reference();
  return state;
}

// A run that branches keeps the reference of the run that it continues, if that has one.
void StateLoader::begin_reference() {
  Reference* const reference = engine_.reference();
  if (!reference || !reference->has_weights()) return;
  const TraceContextScope trace_context(saving_.stream(), TraceContext::Phase::loading);
  const RunFolder& folder = run_.start.folder;
  std::optional<Checkpoint> kept;
  if (run_.start.from)
    kept = run_.start.branches ? kept_reference(run_.start.from->folder.parent_path().parent_path())
                               : require_kept_reference(folder.path());
  stream_.wait();
  const DeadlineScope patience(saving_.world(), saving_.deadline("load the weights of the reference"));
  if (kept)
    load_tensors(saving_.world(), saving_.stream(), *kept, reference->state(), Extra::refuse);
  else if (run_.config->reference() == ReferenceKind::source)
    take_reference(Reference::config_of(*run_.config));
  else
    reference->copy_trained();
  if (kept && !run_.start.branches) return;
  stream_.wait();
  CheckpointContent content;
  content.tensors = reference->state();
  save_checkpoint(saving_.world(), saving_.stream(), folder.reference(), content);
}

void StateLoader::take_reference(const RunConfig& reference) {
  InitialWeights weights(reference, "reference");
  weights.fill(stream_, engine_.reference()->state(), engine_.reference()->parameters());
  await_weights(reference.train.init_from);
  warn_of_lost_best(reference.train.init_from);
  warn_of_non_finite(weights.non_finite(), Counted::own_parts, weights.source().where());
  const auto tokenizer = tokenizer_of(weights.source());
  const bool other = tokenizer && has_other_tokens([&] { return read_tokenizer(*tokenizer); }, run_.tokenizer);
  require<CheckpointError>(
      !other, "reference = ", reference.train.init_from, ": its tokenizer, ", other ? tokenizer->string() : "",
      ", has other tokens than the run's, so that its log probabilities are of other texts; give a "
      "reference with the run's tokenizer");
  if (is_rank_zero()) run_.recorder->note("reference from " + weights.source().where());
}

std::vector<ColumnSpec> StateLoader::columns() const {
  if (run_.config->rollout.rollouts) return {};  // they are sampled, and in no file
  return make_objective(*run_.config)->columns();
}

std::string StateLoader::fingerprint() const {
  return fingerprint_with_columns(run_.data.fingerprint, run_.data.shards, columns());
}

// " (d/rows.bin was written after it)", if the times of change show that.
std::string StateLoader::written_since(const Checkpoint& from) const {
  std::error_code error;
  const auto saved = fs::last_write_time(from.folder, error);
  const std::vector<fs::path> files =
      error ? std::vector<fs::path>() : files_written_after(run_.data.shards, saved, 3, columns());
  std::vector<std::string> names;
  for (const fs::path& file : files) names.push_back(file.string());
  if (names.empty()) return "";
  return fmt::format(" ({} {} written after it)", fmt::join(names, ", "), names.size() == 1 ? "was" : "were");
}

TrainState StateLoader::resume(const Checkpoint& from) {
  TrainState state = load(from);
  require<DataError>(state.data == fingerprint() &&
                         samples_of(state.sources) == samples_of(state.sources.empty()
                                                                     ? std::vector<SourceUse>{}
                                                                     : run_.data.train->use_of(state.consumed_samples)),
                     "the text has changed since ", from.folder.string(), " was saved", written_since(from),
                     run_.config->data.megatron_samples()
                         ? ", or the length of the run, which Megatron-Core's order of samples depends on (train_iters)"
                         : "",
                     ", so the run would resume with different samples. ",
                     run_.start.branches ? "Give the text that it was trained on, or train on another one from its "
                                           "weights (init_state = weights)"
                                         : "Restore the text, train the new one under another name (--run NAME), or "
                                           "start over (--fresh)");
  take_up_rewinds(run_.start.folder, state, is_rank_zero());
  if (run_.start.branches) state.sampled = {};  // the files with these answers are the other run's
  return state;
}

TrainState StateLoader::load(const Checkpoint& from) {
  const TraceContextScope trace_context(saving_.stream(), TraceContext::Phase::loading);
  const bool anew = run_.config->load.no_load_optim && from.step == run_.start.step();
  std::vector<StateTensor> tensors = engine_.state();
  // A rewind to this checkpoint finds the moments of the steps that are taken back.
  if (anew)
    std::erase_if(tensors, [this](const StateTensor& one) {
      const bool of_optimizer = one.kind == StateTensor::Kind::optimizer;
      if (of_optimizer) stream_.zero(one.local);
      return of_optimizer;
    });
  stream_.wait();  // for the zeros
  const DeadlineScope patience(saving_.world(), saving_.deadline(cat("load ", from.folder.string())));
  const std::vector<std::string> lacking =
      load_tensors(saving_.world(), saving_.stream(), from, tensors, anew ? Extra::allow : Extra::refuse);
  if (is_rank_zero() && !lacking.empty())
    run_.recorder->warn(fmt::format("{} has no buffers {}: they start with their initial values", from.folder.string(),
                                    fmt::join(lacking, ", ")));
  TrainState state = TrainState::from_json(from.scalars);
  engine_.features().call(&StepFeature::restore, state, anew);
  if (anew) state.updates = 0;  // the fresh optimizer counts from 0
  return state;
}

void StateLoader::upcycle() {
  const TraceContextScope trace_context(saving_.stream(), TraceContext::Phase::loading);
  const RunConfig& config = run_.config;
  Upcycling upcycling(config);
  const std::vector<StateTensor> tensors = engine_.state();
  stream_.wait();  // for the initial weights of the engine
  upcycling.fill(stream_, tensors);
  await_weights(config.train.upcycle);
  warn_of_lost_best(config.train.upcycle);
  warn_of_non_finite(upcycling.non_finite(), Counted::whole_tensors, upcycling.dense().folder.string());
  if (is_rank_zero()) run_.recorder->note("weights from " + upcycling.dense().folder.string());
  const bool known = has_extra_file(upcycling.dense(), "tokenizer.json");  // some imported runs have none
  if (is_rank_zero() && known &&
      has_other_tokens(
          [&] { return parse_tokenizer_json(read_extra_file(upcycling.dense(), "tokenizer.json"), "tokenizer.json"); },
          run_.tokenizer))
    run_.recorder->warn(fmt::format(
        "{} was trained with another tokenizer: the copied embeddings belong to other tokens (--tokenizer {})",
        upcycling.dense().folder.string(), (upcycling.dense().folder / "tokenizer.json").string()));
}

void StateLoader::take_weights() {
  const TraceContextScope trace_context(saving_.stream(), TraceContext::Phase::loading);
  const RunConfig& config = run_.config;
  InitialWeights weights(config);
  weights.fill(stream_, engine_.state(), engine_.parameters());
  await_weights(config.train.init_from);
  warn_of_lost_best(config.train.init_from);
  warn_of_non_finite(weights.non_finite(), Counted::own_parts, weights.source().where());
  const std::string rounding = describe_rounding(weights);
  if (!is_rank_zero()) return;
  run_.recorder->note("weights from " + weights.source().where());
  if (!rounding.empty()) run_.recorder->tell("frozen       " + rounding);
  copy_companions_of(weights.source(), run_.start.folder.path());
  const auto tokenizer = tokenizer_of(weights.source());
  if (tokenizer && has_other_tokens([&] { return read_tokenizer(*tokenizer); }, run_.tokenizer))
    run_.recorder->warn(fmt::format("{} has another tokenizer: its embeddings belong to other tokens (--tokenizer {})",
                                    weights.source().where(), tokenizer->string()));
}

void StateLoader::warn_of_lost_best(const std::string& source) {
  if (!is_rank_zero()) return;
  if (const auto lost = lost_best_of_name(source, run_.config->train.runs_folder))
    run_.recorder->warn(cat(source, ": ", *lost));
}

// Sums over all ranks; collective.
void StateLoader::warn_of_non_finite(const std::map<std::string, int64_t>& own, Counted counted,
                                     const std::string& source) {
  std::map<std::string, int64_t> all;
  for (const std::string& text : gather_texts(saving_.world(), saving_.stream(), Json(own).dump()))
    for (const auto& [name, values] : Json::parse(text).get<std::map<std::string, int64_t>>())
      all[name] = counted == Counted::own_parts ? all[name] + values : values;
  if (all.empty()) return;
  NonFinite found{.values = 0, .tensors = std::ssize(all), .first = all.begin()->first};
  for (const auto& [name, values] : all) found.values += values;
  run_.recorder->warn(describe(found, cat("the weights of ", source)));
}

// Of the matrices of all ranks that are kept as codes; collective.
std::string StateLoader::describe_rounding(const InitialWeights& weights) {
  Json own = Json::object();
  for (const auto& [format, error] : weights.rounding())
    own[format] = Json::array({error.squared_error, error.squared_values});
  std::map<std::string, RoundingError> all;
  for (const std::string& text : gather_texts(saving_.world(), saving_.stream(), own.dump())) {
    const Json of_rank = Json::parse(text);
    for (const auto& [format, sums] : of_rank.items())
      all[format] += {sums.at(0).get<double>(), sums.at(1).get<double>()};
  }
  std::string described;
  for (const auto& [format, error] : all)
    described += (described.empty() ? "" : ", ") +
                 (error.squared_error == 0
                      ? fmt::format("{} without a difference", format)
                      : fmt::format("{} with an error of {:.2g} % (root mean square)", format, 100 * error.relative()));
  return described;
}

// Each rank reads initial weights by itself, perhaps from a slower disk than others, so that it may be late.
void StateLoader::await_weights(const std::string& source) {
  const DeadlineScope patience(saving_.world(), saving_.deadline(cat("load the weights of ", source)));
  saving_.world().barrier(saving_.stream());
}

}  // namespace witan

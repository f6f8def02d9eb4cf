// witan eval: how well a trained model predicts held-out or given text, which of two answers it prefers, and how it
// scores in benchmarks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/output_file.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/eval_tasks.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/cli/text_batches.h"
#include "witan/report/progress/progress.h"
#include "witan/train/data/run_conversations.h"
#include "witan/train/loop/run_routes.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/step/evaluate.h"
#include "witan/train/step/non_finite.h"
#include "witan/train/step/objective.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

struct EvalArgs {
  RunArgs run;
  std::vector<std::string> data;
  CorpusOptions corpus;
  std::string record_routes;  // a folder; empty: none
  std::string set;            // of valid_data; empty: none
  bool all = false;
  bool conversations = false;  // in `data`, of a run trained on pairs of answers
  EvalTasksArgs tasks;
  std::string json;  // a file; empty: standard output, if JSON is asked for
  std::optional<Option> json_option;
};

struct Score {
  std::string text;  // what was read
  Evaluation evaluation;
  double bytes = 0;

  double perplexity() const { return std::exp(evaluation.loss()); }
  double bits_per_byte() const { return bytes > 0 ? evaluation.nats / std::numbers::ln2 / bytes : 0; }
  bool of_pairs() const { return !evaluation.figures.empty(); }
};

// Whether pairs of answers are compared, by the loss that the run was trained with.
bool compares_pairs(const EvalArgs& args, const TrainedRun& run) {
  return run.config->data.preferences && !args.conversations;
}

TextBatches held_out(const EvalArgs& args, const TrainedRun& run) {
  require<DataError>(!is_imported_only(run.folder), "the run ", run.folder.string(),
                     " was imported, so it has no text and no validation split: say what to evaluate it on: "
                     "`witan eval --run ",
                     flags_of_run(run.folder), " --data FILE`, or benchmarks with --tasks FILE");
  const RunData data = open_run_data(run);
  const TrainConfig& train = run.config->train;
  const int64_t samples = args.all && data.held_out ? data.held_out->per_epoch() : evaluation_samples(data, train);
  require<ConfigError>(samples > 0, "the run ", run.folder.string(),
                       " makes no evaluations (eval_iters = 0): say what to evaluate it on with --data FILE",
                       data.held_out ? ", or --all for its whole validation split" : "");
  TextBatches text;
  text.batches = held_out_batches(data, samples, train.micro_batch_size);
  text.bytes = target_bytes(text.batches, *run.tokenizer);
  return text;
}

// Evaluates on a set of valid_data as training does.
TextBatches of_set(const EvalArgs& args, const TrainedRun& run, const ValidationSet& set) {
  const TrainConfig& train = run.config->train;
  TextBatches text;
  text.batches =
      evaluation_batches(*set.samples, batch_options(run.config->data, *run.tokenizer),
                         args.all ? set.samples->per_epoch() : evaluation_samples(set, train), train.micro_batch_size);
  text.bytes = target_bytes(text.batches, *run.tokenizer);
  return text;
}

// All conversations, or pairs of answers, of the given files, read as the run reads them.
TextBatches given_rows(EvalArgs args, const TrainedRun& run, Progress& progress) {
  DataConfig data = run.config->data;
  data.valid_data.clear();
  data.preferences = compares_pairs(args, run);
  data.bad_row_share = args.corpus.bad_row_share;
  data.replace_invalid_utf8 = args.corpus.replace_invalid_utf8;
  const ValidationSet set = read_validation_set("data", paths_of(args.data), data, *run.tokenizer,
                                                kept_conversation_format(data, *run.tokenizer, run.folder));
  for (const std::string& warning : set.warnings) progress.note("warning: " + warning);
  args.all = true;
  return of_set(args, run, set);
}

TextBatches validation_set(const EvalArgs& args, const TrainedRun& run, Progress& progress) {
  const DataConfig& data = run.config->data;
  std::vector<std::string> names;
  if (data.megatron_samples())
    for (const ValidationSet& set : open_run_data(run).sets) {
      names.push_back(set.name);
      if (set.name == args.set) return of_set(args, run, set);
    }
  for (const auto& [name, file] : parse_validation_sets(data.valid_data)) {
    names.push_back(name);
    if (name != args.set) continue;
    const ValidationSet set = read_validation_set(name, {file}, data, *run.tokenizer,
                                                  kept_conversation_format(data, *run.tokenizer, run.folder));
    for (const std::string& warning : set.warnings) progress.note("warning: " + warning);
    return of_set(args, run, set);
  }
  throw UsageError(names.empty()
                       ? cat("--set ", args.set, ": the run has no validation sets (valid_data)")
                       : fmt::format("--set {}: the run has the validation sets {}", args.set, fmt::join(names, ", ")));
}

TextBatches given_text(const EvalArgs& args, const TrainedRun& run, Progress& progress) {
  const Sources sources = find_sources(paths_of(args.data));
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  check_encoding(sources.files, args.corpus);
  TextBatches text = batch_text(sources.files, args.corpus, *run.tokenizer, run.config->data.seq_length,
                                batch_options(run.config->data, *run.tokenizer));
  for (const std::string& loss : describe_losses(text.corpus)) progress.note("warning: " + loss);
  return text;
}

TextBatches text_of(const EvalArgs& args, const TrainedRun& run, Progress& progress) {
  require<UsageError>(!args.conversations || run.config->data.preferences,
                      "witan eval: --conversations is for runs that "
                      "were trained on pairs of answers; leave it out for ",
                      run.folder.filename().string());
  if (!args.set.empty()) return validation_set(args, run, progress);
  if (args.data.empty()) return held_out(args, run);
  return run.config->data.sft ? given_rows(args, run, progress) : given_text(args, run, progress);
}

std::string name_of(const EvalArgs& args) {
  if (!args.set.empty()) return "validation set " + args.set;
  return args.data.empty() ? "validation split" : fmt::format("{}", fmt::join(args.data, " "));
}

// The first parameter of the model with values that are not finite: ": embedding.weight: 32 NaN".
std::string bad_weights(Transformer& model) {
  for (const Parameter* parameter : model.parameters())
    if (const auto found = describe_non_finite(*parameter, parameter->value(), 0))
      return cat(": weights are not finite: ", *found);
  return ", though all weights are finite: activations are not";
}

void require_finite(const TrainedRun& run, const Score& score, Transformer& model) {
  const double loss = score.evaluation.loss();
  if (std::isfinite(loss)) return;
  throw DivergedError(cat("the loss of ", run.checkpoint.folder.string(), " on ", score.text, " is ",
                          unsigned_nan(loss), bad_weights(model),
                          ". Use an earlier checkpoint (--run RUN@STEP), or weights from another source"));
}

// Evaluates batches one at a time, and the frozen reference before the model, so that only one of them is in memory.
class BatchEvaluator {
 public:
  BatchEvaluator(const EvalArgs& args, const TrainedRun& run, const std::vector<Batch>& batches)
      : batches_(batches), padded_(std::ranges::any_of(batches, [](const Batch& batch) {
          return std::ranges::find(batch.sequence_ids, kPadding) != batch.sequence_ids.end();
        })) {
    if (!compares_pairs(args, run)) return;
    objective_ = make_objective(run.config);
    references_.resize(batches.size());
    const std::optional<TrainedRun> reference = reference_run(run);
    if (!reference) return;
    const bool adapters_off = run.config->reference() == ReferenceKind::base;
    const auto compute = [&](Stream& stream, Transformer& model, size_t i) {
      model.attach({.adapters_off = &adapters_off});
      references_[i] = target_logprobs(stream, model, batches_[i], padded_);
    };
    TrainedModel model(*reference, resolved_threads(args.run),
                       [&](Stream& stream, Transformer& meta) { rehearse(stream, meta, compute); });
    for (size_t i = 0; i < batches_.size(); ++i) compute(model.stream(), model.model(), i);
  }

  Evaluation evaluate(Stream& stream, Transformer& model, size_t i) const {
    if (!objective_) return witan::evaluate(stream, model, batches_[i], padded_);
    return witan::evaluate(stream, model, batches_[i], padded_, *objective_, references_[i]);
  }
  void rehearse(Stream& stream, Transformer& model) const {
    rehearse(stream, model, [&](Stream& on, Transformer& meta, size_t i) { evaluate(on, meta, i); });
  }

 private:
  // The addresses of a batch's tensors depend only on its shape, and a smaller batch may need a higher address.
  template <class Work>
  void rehearse(Stream& stream, Transformer& model, const Work& work) const {
    std::set<std::pair<int64_t, int64_t>> shapes;
    for (size_t i = 0; i < batches_.size(); ++i)
      if (shapes.emplace(batches_[i].sequences, batches_[i].sequence_length).second) work(stream, model, i);
  }

  const std::vector<Batch>& batches_;
  const bool padded_;
  std::unique_ptr<Objective> objective_;         // null: the cross entropy of targets
  std::vector<std::vector<double>> references_;  // of each batch, with an objective
};

Score score(Context& context, const EvalArgs& args, const TrainedRun& run) {
  Progress progress(context.err, progress_options(context.err));
  const TextBatches text = text_of(args, run, progress);
  const BatchEvaluator evaluator(args, run, text.batches);
  TrainedModel model(run, resolved_threads(args.run),
                     [&](Stream& stream, Transformer& meta) { evaluator.rehearse(stream, meta); });
  std::optional<RouteLog> routes;
  if (!args.record_routes.empty()) routes.emplace(model.model());
  TaskProgress task(progress, "evaluating", static_cast<double>(text.batches.size()), "batches");
  Score score{name_of(args), {}, text.bytes};
  for (size_t i = 0; i < text.batches.size(); ++i) {
    const Batch& batch = text.batches[i];
    const Evaluation part = evaluator.evaluate(model.stream(), model.model(), i);
    score.evaluation.nats += part.nats;
    score.evaluation.targets += part.targets;
    score.evaluation.figures.resize(part.figures.size());
    for (size_t f = 0; f < part.figures.size(); ++f) {
      score.evaluation.figures[f].first = part.figures[f].first;
      score.evaluation.figures[f].second += part.figures[f].second;
    }
    const auto number = static_cast<int64_t>(i) + 1;
    if (routes) routes->write(args.record_routes, RouteFile::Kind::evaluation, number, batch.sequences, batch.tokens);
    task.update(static_cast<double>(number));
  }
  for (auto& [name, value] : score.evaluation.figures) value /= score.evaluation.targets;
  require_finite(run, score, model.model());
  return score;
}

void print_table(std::FILE* out, const TrainedRun& run, const Score& score) {
  fmt::print(out, "run           {}, step {}\n", run.folder.string(), run.checkpoint.step);
  if (score.of_pairs()) {
    fmt::print(out, "pairs         {}: {:.0f}\n", score.text, score.evaluation.targets);
    fmt::print(out, "loss          {:.4f} per pair\n", score.evaluation.loss());
    for (const auto& [name, value] : score.evaluation.figures) {
      std::string shown = name;
      std::ranges::replace(shown, '_', ' ');
      fmt::print(out, "{:<15} {:.4f}\n", shown, value);
    }
    return;
  }
  fmt::print(out, "text          {}: {} in {:.0f} tokens\n", score.text, format_bytes(score.bytes),
             score.evaluation.targets);
  fmt::print(out, "loss          {:.4f} nats/token\n", score.evaluation.loss());
  fmt::print(out, "perplexity    {:.3f} per token\n", score.perplexity());
  fmt::print(out, "bits/byte     {:.4f}\n", score.bits_per_byte());
}

std::string json_of(const TrainedRun& run, const Score& score) {
  nlohmann::ordered_json json = {{"run", run.folder.filename().string()},
                                 {"step", run.checkpoint.step},
                                 {"text", replace_invalid_utf8(score.text)},
                                 {"bytes", std::llround(score.bytes)},
                                 {score.of_pairs() ? "pairs" : "tokens", std::llround(score.evaluation.targets)},
                                 {"loss", score.evaluation.loss()}};
  if (!score.of_pairs()) {
    json["perplexity"] = score.perplexity();
    json["bits_per_byte"] = score.bits_per_byte();
  }
  for (const auto& [name, value] : score.evaluation.figures) json[name] = value;
  return json.dump(2) + "\n";
}

OutputFile json_file(const EvalArgs& args) {
  return {args.json, "witan eval: --json", "file of figures", [](std::string_view bytes) {
            return is_json_with(bytes, {"run", "step", "bits_per_byte"}) ||
                   is_json_with(bytes, {"run", "step", "reward_accuracy"}) ||
                   is_json_with(bytes, {"run", "step", "results", "n-shot"});
          }};
}

ExitCode act(Context& context, const EvalArgs& args) {
  require<UsageError>(!args.tasks.files.empty() || (args.run.device != "cuda" && !args.run.deterministic),
                      "witan eval: --device cuda and --deterministic are for --tasks: losses are computed on the CPU");
  const bool json = args.json_option->given();
  if (json && !args.json.empty()) json_file(args).require_free();
  const TrainedRun run = open_selected_run(context.err, args.run);
  std::string found;
  if (!args.tasks.files.empty()) {
    const EvalTasksResult result = evaluate_tasks(context, args.tasks, args.run, run);
    if (!json || !args.json.empty()) fmt::print(context.out, "{}", tasks_table(run, result));
    found = json ? tasks_json(run, result) : "";
  } else {
    const Score result = score(context, args, run);
    if (!json || !args.json.empty()) print_table(context.out, run, result);
    found = json ? json_of(run, result) : "";
  }
  if (json && args.json.empty()) fmt::print(context.out, "{}", found);
  if (json && !args.json.empty()) json_file(args).write(found);
  return ExitCode::done;
}

}  // namespace

void add_eval(CLI::App& app, Context& context) {
  const auto args = std::make_shared<EvalArgs>();
  CLI::App* command = add_command(
      app, context,
      {"eval", "Measure a trained model's loss, perplexity and bits per byte, or its scores in benchmarks",
       "Without --data, --set and --tasks it measures the part of the run's validation split that training "
       "evaluates on. Of a run that was trained on pairs of answers it measures the loss of pairs, and how "
       "often the chosen answer is preferred. --tasks asks multiple-choice questions from local files in the format of "
       "lm-evaluation-harness and gives its metrics. Runs on the CPU; benchmarks on a GPU, too.",
       "witan eval\n"
       "witan eval --run my-run --all\n"
       "witan eval --record-routes routes\n"
       "witan eval --data other.txt --json\n"
       "witan eval --run preferred\n"
       "witan eval --tasks tasks --num-fewshot 2 --json scores.json"},
      [&context, args] { return act(context, *args); });
  add_run_args(*command, args->run);
  const Option data = add_option(*command, "--data", args->data,
                                 "Evaluate these files and folders of text or rows instead of the validation split")
                          .type_name("FILE");
  const Option set = add_option(*command, "--set", args->set,
                                "Evaluate on this set of the run's valid_data instead of the validation split")
                         .type_name("NAME");
  const Option tasks =
      add_option(
          *command, "--tasks", args->tasks.files,
          "Score in these tasks of lm-evaluation-harness: files in .yaml and folders of them (docs/formats/tasks.md)")
          .type_name("FILE");
  data.excludes(set);
  tasks.excludes(data).excludes(set);
  add_text_args(*command, args->corpus);
  add_option(*command, "--record-routes", args->record_routes,
             "Record which experts each token visits in this folder, for `witan train --replay-routes`")
      .type_name("FOLDER")
      .excludes(tasks);
  add_flag(*command, "--conversations", args->conversations,
           "Of a run trained on pairs of answers: --data holds conversations, whose answers are predicted")
      .needs(data);
  add_flag(*command, "--all", args->all, "Evaluate on the whole validation split or set")
      .excludes(data)
      .excludes(tasks);
  args->json_option =
      add_option(*command, "--json", args->json, "Print JSON, or print the table and write JSON to FILE")
          .type_name("[FILE]")
          .optional_value();
  add_eval_tasks_args(*command, args->tasks, args->run, tasks);
  add_threads(*command, args->run);
}

}  // namespace witan::cli

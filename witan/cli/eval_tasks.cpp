#include "witan/cli/eval_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/files/output_file.h"
#include "witan/base/text.h"
#include "witan/cli/args/sampling_args.h"
#include "witan/data/corpus/sources.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct AskedTask {
  const TaskConfig* task;
  std::vector<Question> questions;
  size_t first = 0;  // index of its first pair among all
};

std::vector<AskedTask> ask_questions(std::FILE* err, const EvalTasksArgs& args, const TaskSet& set) {
  std::vector<AskedTask> asked;
  for (const TaskConfig& task : set.tasks) {
    Questions questions = make_questions(task, {.limit = args.limit, .fewshot = args.fewshot});
    for (const std::string& warning : questions.warnings) fmt::print(err, "warning: {}\n", warning);
    asked.push_back({&task, std::move(questions.all)});
  }
  return asked;
}

std::vector<TokenPair> encode_answers(std::FILE* err, std::vector<AskedTask>& asked, const PairEncoder& encoder,
                                      int64_t max_length) {
  std::vector<TokenPair> pairs;
  for (AskedTask& one : asked) {
    one.first = pairs.size();
    size_t truncated = 0;
    for (size_t i = 0; i < one.questions.size(); ++i) {
      const Question& question = one.questions[i];
      for (const std::string& continuation : question.continuations) try {
          pairs.push_back(encoder.encode(question.context, continuation));
          truncated += pairs.back().truncated;
        } catch (const DataError& error) {
          throw DataError(fmt::format("{}: row {} of the split {}: {}", one.task->file.string(), i + 1,
                                      one.task->split(), error.what()));
        }
    }
    if (truncated > 0)
      fmt::print(
          err,
          "warning: {}: {} of {} questions with their answers are longer than {} tokens (--max-length): they lose "
          "the beginning of their context\n",
          one.task->name, truncated, pairs.size() - one.first, max_length);
  }
  return pairs;
}

OutputFile samples_file(const EvalTasksArgs& args) {
  return {args.log_samples, "witan eval: --log-samples", "file of questions", [](std::string_view bytes) {
            return begins_with_json(bytes, {"task", "doc_id", "continuations", "loglikelihoods"});
          }};
}

// A line of JSON for each question: what was asked and found.
void write_samples(const OutputFile& file, const std::vector<AskedTask>& asked,
                   const std::vector<Loglikelihood>& found) {
  std::string lines;
  for (const AskedTask& one : asked) {
    size_t at = one.first;
    for (size_t i = 0; i < one.questions.size(); ++i) {
      const Question& question = one.questions[i];
      OrderedJson line = {{"task", one.task->name},
                          {"doc_id", i},
                          {"context", question.context},
                          {"continuations", question.continuations},
                          {"target", question.gold}};
      line["loglikelihoods"] = OrderedJson::array();
      line["greedy"] = OrderedJson::array();
      for (size_t c = 0; c < question.continuations.size(); ++c, ++at) {
        line["loglikelihoods"].push_back(found[at].nats);
        line["greedy"].push_back(found[at].greedy);
      }
      lines += line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    }
  }
  file.write(lines);
}

int64_t max_length_of(const EvalTasksArgs& args, const TrainedRun& run) {
  const int64_t made_for = context_of(run);
  if (args.max_length == 0) return made_for;
  const bool learned = run.config->model.attention.max_position_embeddings > 0;
  require<UsageError>(!learned || args.max_length <= run.config->model.attention.max_position_embeddings,
                      "--max-length ", args.max_length, ": the model has learned ",
                      run.config->model.attention.max_position_embeddings, " positions (max_position_embeddings)");
  return args.max_length;
}

void add_rows(std::vector<std::vector<std::string>>& rows, const TaskScore& score, const std::string& shots) {
  bool first = true;
  for (const TaskMetric& metric : score.metrics) {
    rows.push_back({first ? score.name : "", first ? shots : "", first ? fmt::format("{}", score.rows) : "",
                    metric.name, fmt::format("{:.4f}", metric.value),
                    metric.standard_error ? fmt::format("± {:.4f}", *metric.standard_error) : ""});
    first = false;
  }
}

OrderedJson scores_json(const std::vector<TaskScore>& scores) {
  OrderedJson all = OrderedJson::object();
  for (const TaskScore& score : scores) {
    OrderedJson& one = all[score.name] = {{"alias", score.name}};
    for (const TaskMetric& metric : score.metrics) {
      one[metric.name + ",none"] = metric.value;
      one[metric.name + "_stderr,none"] =
          metric.standard_error ? OrderedJson(*metric.standard_error) : OrderedJson("N/A");
    }
    one["sample_len"] = score.rows;
  }
  return all;
}

}  // namespace

void add_eval_tasks_args(CLI::App& command, EvalTasksArgs& args, RunArgs& run, Option tasks) {
  add_option(command, "--num-fewshot", args.fewshot,
             "Put N examples before each question of --tasks (default: as the task says)")
      .type_name("N")
      .range(int64_t{0}, int64_t{1000})
      .needs(tasks);
  add_option(command, "--limit", args.limit, "Ask only the first N questions of each of --tasks (0: all)")
      .type_name("N")
      .range(int64_t{0}, int64_t{1} << 40)
      .needs(tasks);
  add_option(command, "--batch-size", args.batch_size,
             "Batch N answers of --tasks: more memory and speed, the same results (on a GPU with "
             "--deterministic)")
      .type_name("N")
      .range(int64_t{1}, int64_t{65536})
      .show_default()
      .needs(tasks);
  add_option(
      command, "--max-length", args.max_length,
      "The most tokens that the model reads; longer questions of --tasks lose their beginning (default: what the "
      "model was trained on)")
      .type_name("N")
      .range(int64_t{1}, int64_t{1} << 40)
      .needs(tasks);
  add_option(command, "--log-samples", args.log_samples,
             "Write each question of --tasks with the log-likelihoods of its answers to FILE, as a line of JSON")
      .type_name("FILE")
      .needs(tasks);
  add_device(command, run);
}

EvalTasksResult evaluate_tasks(Context& context, const EvalTasksArgs& args, const RunArgs& run_args,
                               const TrainedRun& run) {
  if (!args.log_samples.empty()) samples_file(args).require_free();
  const TaskSet set = read_tasks(paths_of(args.files));
  std::vector<AskedTask> asked = ask_questions(context.err, args, set);
  const int64_t max_length = max_length_of(args, run);
  const std::vector<TokenPair> pairs =
      encode_answers(context.err, asked, PairEncoder(*run.tokenizer, run.folder / "hf", max_length), max_length);
  const LoglikelihoodOptions options{args.batch_size, generation_mode(run_args, run).repeatable};
  TrainedModel model(
      run, resolved_threads(run_args),
      [&](Stream& stream, Transformer& meta) { loglikelihoods(stream, meta, pairs, options); },
      device_named(run_args.device));
  Progress progress(context.err, progress_options(context.err));
  TaskProgress shown(progress, "answers", static_cast<double>(pairs.size()), "answers");
  const auto found = loglikelihoods(model.stream(), model.model(), pairs, options,
                                    [&](size_t done) { shown.update(static_cast<double>(done)); });
  if (!args.log_samples.empty()) write_samples(samples_file(args), asked, found);
  EvalTasksResult result;
  for (size_t i = 0; i < asked.size(); ++i) {
    const size_t end = i + 1 < asked.size() ? asked[i + 1].first : found.size();
    result.tasks.push_back(
        score_task(*asked[i].task, asked[i].questions, std::span(found).subspan(asked[i].first, end - asked[i].first)));
    result.fewshot.push_back(args.fewshot >= 0 ? args.fewshot : asked[i].task->fewshot.count);
  }
  for (const GroupConfig& group : set.groups)
    if (!group.metrics.empty()) result.groups.push_back(score_group(group, result.tasks));
  return result;
}

std::string tasks_table(const TrainedRun& run, const EvalTasksResult& result) {
  std::vector<std::vector<std::string>> rows = {{"task", "shots", "rows", "metric", "value", "std. error"}};
  for (size_t i = 0; i < result.tasks.size(); ++i)
    add_rows(rows, result.tasks[i], fmt::format("{}", result.fewshot[i]));
  for (const TaskScore& group : result.groups) add_rows(rows, group, "");
  std::vector<int> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  std::string text = fmt::format("run           {}, step {}\n", run.folder.string(), run.checkpoint.step);
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(static_cast<size_t>(widths[i] - display_width(row[i])), ' ');
      const bool number = i == 1 || i == 2 || i == 4;
      line += (i > 0 ? "  " : "") + (number ? space + row[i] : row[i] + space);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string tasks_json(const TrainedRun& run, const EvalTasksResult& result) {
  OrderedJson json = {{"run", run.folder.filename().string()}, {"step", run.checkpoint.step}};
  json["results"] = scores_json(result.tasks);
  if (!result.groups.empty()) json["groups"] = scores_json(result.groups);
  json["n-shot"] = OrderedJson::object();
  for (size_t i = 0; i < result.tasks.size(); ++i) json["n-shot"][result.tasks[i].name] = result.fewshot[i];
  return json.dump(2) + "\n";
}

}  // namespace witan::cli

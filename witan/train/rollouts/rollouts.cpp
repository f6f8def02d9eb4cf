#include "witan/train/rollouts/rollouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/json.h"
#include "witan/comm/texts.h"
#include "witan/generate/generation_batch.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/step/sequence_objectives.h"

namespace witan {
namespace {

// The places [begin, end) of a conversation's last answer; both 0 if its first S + 1 tokens have none.
std::pair<size_t, size_t> last_answer(const std::vector<float>& loss) {
  size_t end = loss.size();
  while (end > 0 && loss[end - 1] <= 0) --end;
  size_t begin = end;
  while (begin > 0 && loss[begin - 1] > 0) --begin;
  return {begin, end};
}

// The most answers that are sampled at a time.
int64_t answers_at_once(const RunConfig& config) {
  const int64_t rows = config.train.global_batch_size * config.rollout.steps_per_generation /
                       (samples_in_lockstep(config) ? 1 : config.parallel.data_ranks());
  const int64_t most = config.rollout.rollout_batch_size;
  return most > 0 ? std::min(rows, most) : rows;
}

StateSize state_size(const RunConfig& config) {
  return {.rows = answers_at_once(config), .positions = config.data.seq_length + 1};
}

GenerationMode mode_of(const RunConfig& config) {
  return {.repeatable = config.parallel.batch_invariant_mode};
}

}  // namespace

bool samples_in_lockstep(const RunConfig& config) {
  return config.parallel.expert_ranks(static_cast<int>(config.parallel.ranks), config.model.moe.num_experts) > 1 ||
         config.parallel.sharding() == Sharding::parameters;
}

// A step reads the prompts of at most a micro-batch, so that it takes no more memory than the layers of a step.
void rehearse_rollouts(Stream& stream, Transformer& model, const RunConfig& config) {
  const StateSize size = state_size(config);
  const int64_t begun = std::min(size.rows, config.train.micro_batch_size), running = size.rows - begun;
  GenerationBatch batch(stream, model, size, mode_of(config));
  GenerationRequest request{{0}, {}, /*top_logprobs=*/0};
  request.options.max_tokens = 2;
  for (int64_t i = 0; i < running; ++i) batch.admit(request);
  batch.step();
  request.prompt.resize(static_cast<size_t>(config.data.seq_length));
  request.options.max_tokens = 1;
  for (int64_t i = 0; i < begun; ++i) batch.admit(request);
  batch.step();
  batch.rehearse();
}

std::string Rollout::to_line() const {
  return Json{{"row", row},
              {"prompt", text.prompt},
              {"completion", text.completion},
              {"answer", text.answer},
              {"prompt_tokens", prompt},
              {"completion_tokens", completion},
              {"logprobs", logprobs},
              {"ended", ended},
              {"reward", reward},
              {"advantage", advantage},
              {"skipped", skipped}}
             .dump(-1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

Rollout Rollout::of_line(std::string_view line, std::string_view where) try {
  const Json read = parse_json(line, where);
  Rollout rollout;
  read.at("row").get_to(rollout.row);
  read.at("prompt").get_to(rollout.text.prompt);
  read.at("completion").get_to(rollout.text.completion);
  read.at("answer").get_to(rollout.text.answer);
  read.at("prompt_tokens").get_to(rollout.prompt);
  read.at("completion_tokens").get_to(rollout.completion);
  read.at("logprobs").get_to(rollout.logprobs);
  read.at("ended").get_to(rollout.ended);
  read.at("reward").get_to(rollout.reward);
  read.at("advantage").get_to(rollout.advantage);
  read.at("skipped").get_to(rollout.skipped);
  require<DataError>(rollout.logprobs.size() == rollout.completion.size(), where, ": ", rollout.logprobs.size(),
                     " log probabilities of ", rollout.completion.size(), " tokens");
  return rollout;
} catch (const nlohmann::json::exception& error) {
  throw DataError(
      cat(where, ": is not a rollout: ", error.what(), ": remove the file and resume from an earlier ", "checkpoint"));
}

Batch batch_of(const std::vector<Rollout>& rollouts, const RunConfig& config) {
  const auto rows = rollouts.size(), length = static_cast<size_t>(config.data.seq_length), count = rows * length;
  Batch batch{.sequences = static_cast<int64_t>(rows),
              .sequence_length = config.data.seq_length,
              .tokens = std::vector<int32_t>(count),
              .targets = std::vector<int32_t>(count),
              .positions = std::vector<int32_t>(count),
              .sequence_ids = std::vector<int32_t>(count, kPadding),
              .loss_mask = std::vector<float>(count)};
  for (const ColumnSpec& spec : make_policy_objective(config)->columns())
    batch.columns.push_back({spec, std::vector<float>(count)});
  for (size_t r = 0; r < rows; ++r) {
    const Rollout& rollout = rollouts[r];
    std::vector<int32_t> tokens = rollout.prompt;
    tokens.insert(tokens.end(), rollout.completion.begin(), rollout.completion.end());
    require<DataError>(tokens.size() <= length + 1, "rollout ", rollout.row, " has ", tokens.size(),
                       " tokens, more than seq_length + 1 = ", length + 1);
    for (size_t place = 0; place < length; ++place) {
      const size_t at = r * length + place;
      batch.positions[at] = static_cast<int32_t>(place);
      if (place + 1 >= tokens.size()) continue;
      batch.tokens[at] = tokens[place];
      batch.targets[at] = tokens[place + 1];
      batch.sequence_ids[at] = 0;
      if (place + 1 < rollout.prompt.size()) continue;
      batch.loss_mask[at] = rollout.skipped ? 0.0f : 1.0f;
      for (Column& column : batch.columns)
        column.values[at] = column.spec.name == kAdvantages ? static_cast<float>(rollout.advantage)
                                                            : rollout.logprobs[place + 1 - rollout.prompt.size()];
    }
  }
  batch.count_loss_tokens();
  return batch;
}

std::vector<int64_t> Rollouts::own_rows(int64_t first) const {
  const Layout& layout = parts_.groups.layout();
  const int64_t own = rows_of_step() / layout.data_ranks();
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < own; ++i) rows.push_back(first + layout.data_rank(parts_.groups.rank()) * own + i);
  return rows;
}

fs::path Rollouts::file_of(int64_t step) const {
  return parts_.folder.rollouts() / fmt::format("step-{:08}.jsonl", step);
}

Rollout Rollouts::begin(int64_t row) const {
  const SampleSource& samples = *parts_.data.train;
  const SampleSource::Piece piece = samples.pieces_of(row / parts_.config->rollout.num_generations).front();
  std::vector<int32_t> tokens(static_cast<size_t>(piece.places) + 1);
  std::vector<float> loss(tokens.size());
  samples.dataset().read(piece.document, piece.begin, tokens);
  samples.dataset().read_loss(piece.document, piece.begin, loss);
  const auto [begin, end] = last_answer(loss);
  require<DataError>(begin > 0, samples.dataset().name(), ": conversation ", piece.document,
                     " begins with its answer, so that there is no prompt to continue: give a user's message first");
  Rollout rollout;
  rollout.row = row;
  rollout.prompt.assign(tokens.begin(), tokens.begin() + static_cast<int64_t>(begin));
  std::vector<int32_t> answer(tokens.begin() + static_cast<int64_t>(begin), tokens.begin() + static_cast<int64_t>(end));
  while (!answer.empty() && std::ranges::find(parts_.ends, answer.back()) != parts_.ends.end()) answer.pop_back();
  rollout.text.prompt = parts_.data.tokenizer->decode(rollout.prompt);
  rollout.text.answer = parts_.data.tokenizer->decode(answer);
  return rollout;
}

// Prompts are begun as soon as there is room, at most a micro-batch of them in a step.
std::vector<Rollout> Rollouts::sample(const std::vector<int64_t>& rows) {
  Engine& engine = parts_.engine;
  const RunConfig& config = *parts_.config;
  const TraceContextScope trace_context(engine.stream(), TraceContext::Phase::sample);
  GenerationBatch batch(engine.stream(), engine.model(), state_size(config), mode_of(config));
  std::vector<Rollout> rollouts;
  const auto goes_on = [&](size_t, const GeneratedToken& token) {
    return std::ranges::find(parts_.ends, token.token) == parts_.ends.end();
  };
  size_t next = 0;
  while (next < rows.size() || !batch.idle()) {
    for (int64_t begun = 0; begun < config.train.micro_batch_size && next < rows.size() && batch.has_room(); ++begun) {
      Rollout& rollout = rollouts.emplace_back(begin(rows[next++]));
      GenerationRequest request{rollout.prompt, {}, /*top_logprobs=*/0};
      request.options.vocab_size = parts_.data.tokenizer->vocab_size();
      request.options.max_tokens = std::min(config.rollout.max_completion_length,
                                            config.data.seq_length + 1 - static_cast<int64_t>(rollout.prompt.size()));
      request.options.sampler.seed = Philox::stream_of(cat("rollout ", config.train.seed, ' ', rollout.row));
      batch.admit(std::move(request));
    }
    batch.step(goes_on);
    for (auto& [number, generation] : batch.take_finished()) {
      Rollout& rollout = rollouts[number];
      for (const GeneratedToken& token : generation.tokens) {
        rollout.completion.push_back(token.token);
        rollout.logprobs.push_back(token.logprob.value());
      }
      rollout.ended = generation.finish == Finish::stopped_by_caller;
      const auto written = std::span(rollout.completion).first(rollout.completion.size() - rollout.ended);
      rollout.text.completion = parts_.data.tokenizer->decode(written);
    }
  }
  return rollouts;
}

// Rewards whole groups, whose rows follow each other.
void Rollouts::reward(std::vector<Rollout>& rollouts) const {
  const RolloutConfig& config = parts_.config->rollout;
  std::vector<double> rewards;
  if (config.reward == "command") {
    std::vector<SampledAnswer> sampled;
    for (const Rollout& rollout : rollouts) sampled.push_back(rollout.text);
    rewards = run_reward_program(config.reward_command, sampled, config.reward_timeout);
  } else {
    for (const Rollout& rollout : rollouts)
      rewards.push_back(config.reward == "number" ? number_reward(rollout.text) : exact_reward(rollout.text));
  }
  const auto n = static_cast<size_t>(config.num_generations);
  for (size_t i = 0; i < rollouts.size(); ++i)
    rollouts[i].reward = rewards[i] + overlong_penalty(std::ssize(rollouts[i].completion), config.max_completion_length,
                                                       config.overlong_buffer_len, config.overlong_penalty_factor);
  for (size_t first = 0; first < rollouts.size(); first += n) {
    std::vector<double> group;
    for (size_t i = 0; i < n; ++i) group.push_back(rollouts[first + i].reward);
    const std::vector<double> advantages = group_advantages(group, config.scale_rewards);
    for (size_t i = 0; i < n; ++i) {
      rollouts[first + i].advantage = advantages[i];
      rollouts[first + i].skipped = all_equal(group);
    }
  }
}

// Rank 0 writes what all have sampled, a file for each step. A failed reward stops all ranks, after that.
void Rollouts::generate(int64_t step, int64_t consumed) {
  const RunConfig& config = *parts_.config;
  const int64_t steps = config.rollout.steps_per_generation, in_all = steps * rows_of_step();
  parts_.engine.gather_values();
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < steps; ++i)
    std::ranges::copy(own_rows(consumed + i * rows_of_step()), std::back_inserter(rows));
  std::vector<int64_t> sampled = rows;
  if (samples_in_lockstep(config)) {
    sampled.clear();
    for (int64_t i = 0; i < in_all; ++i) sampled.push_back(consumed + i);
  }
  std::vector<Rollout> own = sample(sampled);
  std::erase_if(own, [&](const Rollout& rollout) { return !std::ranges::binary_search(rows, rollout.row); });
  std::string failure;
  try {
    reward(own);
  } catch (const RewardError& error) {
    failure = error.what();
  }
  for (int64_t i = 0; i < steps; ++i) {
    std::string lines;
    const int64_t first = consumed + i * rows_of_step();
    for (const Rollout& rollout : own)
      if (rollout.row >= first && rollout.row < first + rows_of_step()) lines += rollout.to_line();
    const std::vector<std::string> all = gather_texts(parts_.world, parts_.host, lines);
    if (!is_rank_zero()) continue;
    lines.clear();
    for (const std::string& of_rank : all) lines += of_rank;
    fs::create_directories(parts_.folder.rollouts());
    write_file_atomically(file_of(step + i), lines);
  }
  const std::vector<std::string> failures = gather_texts(parts_.world, parts_.host, failure);
  for (const std::string& of_rank : failures)
    if (failure.empty()) failure = of_rank;
  failure = broadcast_text(parts_.world, parts_.host, failure, 0);
  if (!failure.empty()) throw RewardError(failure);
}

// The step's rows, on all ranks.
std::vector<Rollout> Rollouts::read(int64_t step, int64_t first) const {
  const fs::path file = file_of(step);
  std::string text;
  if (is_rank_zero() && fs::exists(file)) text = read_file(file);
  text = broadcast_text(parts_.world, parts_.host, text, 0);
  std::vector<Rollout> rollouts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    rollouts.push_back(Rollout::of_line(std::string_view(text).substr(begin, end - begin),
                                        cat(file.string(), ", line ", rollouts.size() + 1)));
    begin = end + 1;
  }
  std::ranges::sort(rollouts, {}, &Rollout::row);
  require<DataError>(std::ssize(rollouts) == rows_of_step() && rollouts.front().row == first, file.string(), ": has ",
                     rollouts.empty() ? std::string("nothing") : cat("rows from ", rollouts.front().row, " on"),
                     ", where step ", step, " trains on ", rows_of_step(), " rows from ", first,
                     " on: resume from the checkpoint at which their sampling began, or begin a new run");
  return rollouts;
}

void Rollouts::summarize(const std::vector<Rollout>& all) {
  const auto share = [&](const auto& value) {
    double sum = 0;
    for (const Rollout& rollout : all) sum += static_cast<double>(value(rollout));
    return sum / static_cast<double>(all.size());
  };
  const double mean = share([](const Rollout& one) { return one.reward; });
  figures_.set(kReward, mean);
  figures_.set("reward_std",
               std::sqrt(share([&](const Rollout& one) { return (one.reward - mean) * (one.reward - mean); })));
  figures_.set(kCompletionLength, share([](const Rollout& one) { return one.completion.size(); }));
  figures_.set("equal_groups", share([](const Rollout& one) { return one.skipped; }));
  figures_.set("cut_completions", share([](const Rollout& one) { return !one.ended; }));
}

std::vector<Batch> Rollouts::next(int64_t step, int64_t consumed) {
  const RunConfig& config = *parts_.config;
  if ((step - 1) % config.rollout.steps_per_generation == 0) generate(step, consumed);
  const std::vector<Rollout> all = read(step, consumed);
  if (is_rank_zero()) summarize(all);
  std::vector<Batch> batches;
  const std::vector<int64_t> rows = own_rows(consumed);
  const auto in_batch = static_cast<size_t>(config.train.micro_batch_size);
  for (size_t i = 0; i < rows.size(); i += in_batch) {
    const auto begin = all.begin() + (rows[i] - consumed);
    batches.push_back(batch_of({begin, begin + static_cast<int64_t>(in_batch)}, config));
  }
  return batches;
}

}  // namespace witan

#include "witan/train/rollouts/rollouts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "witan/base/hash.h"
#include "witan/base/json.h"
#include "witan/base/process.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/comm/texts.h"
#include "witan/generate/chosen_routes.h"
#include "witan/train/data/run_conversations.h"
#include "witan/train/rollouts/prompts.h"
#include "witan/train/rollouts/rollout_files.h"
#include "witan/train/rollouts/sampling.h"
#include "witan/train/rollouts/unfinished.h"
#include "witan/train/step/features/step_routes.h"

namespace witan {
namespace {

// Prompts from here on, and from its multiples on, replace those of groups with equal rewards.
constexpr int64_t kPromptsOfReplacement = int64_t{1} << 30;

// Calls each(line) for the lines of a text.
template <class Each>
void for_lines(std::string_view text, const Each& each) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    each(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

void require_same_temperature(const TrainState& state, const RunConfig& config) {
  const SampledSteps& sampled = state.sampled;
  if (!config.rollout.rollouts || state.step >= sampled.last || sampled.temperature == config.temperature()) return;
  throw ConfigError(cat("rollout_temperature = ", config.rollout.rollout_temperature, ", but step ", state.step + 1,
                        " trains on answers that were sampled at ", sampled.temperature, ", with those of steps ",
                        sampled.first, " to ", sampled.last, " (steps_per_generation): keep ", sampled.temperature,
                        " until step ", sampled.last, " is done, or resume from a checkpoint before step ",
                        sampled.first));
}

std::vector<int64_t> Rollouts::own_rows(int64_t first) const {
  const Layout& layout = parts_.groups.layout();
  const int64_t own = rows_of_step() / layout.data_ranks();
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < own; ++i) rows.push_back(first + layout.data_rank(parts_.groups.rank()) * own + i);
  return rows;
}

// The answers of the steps from `consumed` on that are sampled at once: all of this data-parallel rank, or this
// context-parallel rank's share of their prompts.
std::vector<int64_t> Rollouts::rows_to_sample(int64_t consumed) const {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < parts_.config->rollout.steps_per_generation; ++i)
    std::ranges::copy(own_rows(consumed + i * rows_of_step()), std::back_inserter(rows));
  const Group& context = parts_.groups.of(Axis::context);
  const int64_t n = parts_.config->rollout.num_generations, prompts = std::ssize(rows) / n;
  const auto first_of = [&](int64_t rank) { return rows.begin() + prompts * rank / context.size() * n; };
  return {first_of(context.rank()), first_of(context.rank() + 1)};
}

// A conversation longer than a sample is read whole, since its reference must be.
Rollout Rollouts::begin(int64_t row) const {
  return begin_with(*parts_.data.train, row / parts_.config->rollout.num_generations % kPromptsOfReplacement, row);
}

Rollout Rollouts::begin_with(const SampleSource& samples, int64_t prompt, int64_t row) const {
  const SampleSource::Piece piece = samples.pieces_of(prompt).front();
  const TokenDataset& conversations = samples.dataset();
  std::vector<int32_t> tokens(static_cast<size_t>(conversations.length(piece.document)));
  std::vector<float> loss(tokens.size());
  conversations.read(piece.document, 0, tokens);
  conversations.read_loss(piece.document, 0, loss);
  const auto [begin, end] = last_answer(loss);
  require<DataError>(begin > 0, conversations.name(), ": conversation ", piece.document,
                     " begins with its answer, so that there is no prompt to continue: give a user's message first");
  Rollout rollout;
  rollout.row = row;
  rollout.prompt.assign(tokens.begin(), tokens.begin() + static_cast<int64_t>(begin));
  std::vector<int32_t> answer(tokens.begin() + static_cast<int64_t>(begin), tokens.begin() + static_cast<int64_t>(end));
  while (!answer.empty() && std::ranges::find(parts_.ends.tokens, answer.back()) != parts_.ends.tokens.end())
    answer.pop_back();
  rollout.text.prompt = parts_.data.tokenizer->decode(rollout.prompt);
  rollout.text.answer = parts_.data.tokenizer->decode(answer);
  return rollout;
}

Rollouts::Rollouts(Parts parts, SampledSteps sampled)
    : parts_(std::move(parts)), rewards_(parts_.config->rollout), sampled_(sampled) {
  const RunConfig& config = *parts_.config;
  if (config.rollout.max_turns > 1)
    turns_.emplace(kept_conversation_format(config.data, *parts_.data.tokenizer, parts_.folder.path()),
                   parts_.data.tokenizer);
}

// Answers that ended before the run was killed, by the same weights, are taken from RUN/rollouts, and so are replies to
// them.
std::vector<Rollout> Rollouts::sample(int64_t step, const std::vector<int64_t>& rows, std::span<const int64_t> asks,
                                      std::string& failure) {
  Engine& engine = parts_.engine;
  const RunConfig& config = *parts_.config;
  const Interrupted interrupted = find_interrupted(step);
  std::vector<Rollout> rollouts, kept;
  for (const int64_t row : rows) {
    const auto found = interrupted.answers.find(row);
    if (found != interrupted.answers.end()) kept.push_back(found->second);
    rollouts.push_back(found == interrupted.answers.end() ? begin(row) : found->second);
  }
  std::unique_ptr<AppendFile> file;
  if (writes_unfinished())
    file = open_unfinished(parts_.folder.rollouts(), parts_.groups.rank(), interrupted.identity, kept);
  ChosenRoutes routes(engine.model().routers());
  StepRoutes* const replay = config.rollout.router_replay ? engine.feature<StepRoutes>() : nullptr;
  if (replay) replay->between_passes(&routes);
  const Sampling with{engine.stream(),
                      engine.model(),
                      parts_.groups,
                      config,
                      *parts_.data.tokenizer,
                      parts_.ends,
                      replay ? &routes : nullptr,
                      parts_.asked};
  const RoundCosts costs = sample_rows(with, rollouts, asks, failure, [&](const Rollout& rollout) {
    if (file) file->append(rollout.to_line());
  });
  sampling_s_ += costs.sampling_s;
  rewards_s_ += costs.rewards_s;
  if (replay) replay->between_passes(nullptr);
  engine.end_reading();
  for (const int64_t of_rank : gather_numbers(parts_.world, parts_.host, writes_unfinished() ? costs.tokens_read : 0))
    prompt_tokens_ += of_rank;
  stopped_ = std::max(stopped_, of_all_ranks(costs.stopped));
  return rollouts;
}

RunEnd Rollouts::of_all_ranks(RunEnd own) {
  for (const int64_t of_rank : gather_numbers(parts_.world, parts_.host, static_cast<int64_t>(own)))
    own = std::max(own, static_cast<RunEnd>(of_rank));
  return own;
}

// A failed reward stops all ranks.
void Rollouts::require_rewards(std::string failure) {
  const std::vector<std::string> failures = gather_texts(parts_.world, parts_.host, failure);
  for (const std::string& of_rank : failures)
    if (failure.empty()) failure = of_rank;
  failure = broadcast_text(parts_.world, parts_.host, failure, 0);
  if (!failure.empty()) throw RewardError(failure);
}

RoundCosts Rollouts::sample_rows(const Sampling& with, std::vector<Rollout>& rollouts, std::span<const int64_t> asks,
                                 std::string& failure, const OnAnswer& on_change) {
  RolloutSampler sampler(with);
  RoundCosts costs;
  if (turns_) {
    const Conversations all{with.config, rewards_, parts_.ends, *turns_, parts_.world, parts_.host};
    const std::string found = sample_conversations(all, sampler, rollouts, asks, costs, on_change);
    if (failure.empty()) failure = found;
    costs.stopped = sampler.stopped();
    return costs;
  }
  std::vector<Rollout*> waiting;
  for (Rollout& rollout : rollouts)
    if (rollout.next == Rollout::Next::answer) waiting.push_back(&rollout);
  const Stopwatch watch;
  costs.tokens_read = sampler.sample(waiting, [&](Rollout& rollout) {
    rollout.next = Rollout::Next::nothing;
    on_change(rollout);
  });
  costs.sampling_s = watch.seconds();
  costs.stopped = sampler.stopped();
  return costs;
}

bool Rollouts::keeps_answers() const {
  return parts_.groups.of(Axis::tensor).rank() == 0 && parts_.groups.of(Axis::pipeline).rank() == 0;
}

// Among ranks that sample the same rows, the first one.
bool Rollouts::writes_unfinished() const {
  return samples_in_lockstep(*parts_.config) ? is_rank_zero() : keeps_answers();
}

Rollouts::Interrupted Rollouts::find_interrupted(int64_t step) {
  const RunConfig& config = *parts_.config;
  const RolloutConfig& rollout = config.rollout;
  Json found = Json::object();
  const std::vector<std::string> hashes =
      gather_texts(parts_.world, parts_.host, hash_of_weights(parts_.engine.stream(), parts_.engine.model()));
  if (is_rank_zero()) {
    std::string weights;
    for (const std::string& hash : hashes) weights += hash;
    const std::string identity = Json{{"step", step},
                                      {"weights", hash_hex(weights.data(), weights.size())},
                                      {"seed", config.train.seed},
                                      {"seq_length", config.data.seq_length},
                                      {"num_generations", rollout.num_generations},
                                      {"max_completion_length", rollout.max_completion_length},
                                      {"rollout_temperature", rollout.rollout_temperature},
                                      {"kv_cache_dtype", rollout.cache.kv_cache_dtype},
                                      {"cache_mla_latents", rollout.cache.cache_mla_latents},
                                      {"stop_strings", rollout.stop_strings},
                                      {"max_turns", rollout.max_turns},
                                      {"replies", rollout.max_turns > 1 ? rollout.reward_command : ""}}
                                     .dump();
    found = {{"identity", identity}, {"lines", read_unfinished(parts_.folder.rollouts(), identity)}};
    remove_unfinished(parts_.folder.rollouts());
  }
  const std::string text =
      broadcast_text(parts_.world, parts_.host, found.dump(-1, ' ', false, Json::error_handler_t::replace), 0);
  found = parse_json(text, "answers of rank 0");
  Interrupted interrupted{found.at("identity").get<std::string>(), {}};
  const std::string lines = found.at("lines").get<std::string>();
  for_lines(lines, [&](std::string_view line) {
    Rollout answer = Rollout::of_line(line, "an unfinished answer in RUN/rollouts");
    interrupted.answers.insert_or_assign(answer.row, std::move(answer));
  });
  return interrupted;
}

// Sets rewards, whose sum has the penalty of long answers. Throws RewardError.
void Rollouts::score(std::vector<Rollout>& rollouts) {
  const RolloutConfig& config = parts_.config->rollout;
  std::vector<SampledAnswer> sampled;
  for (Rollout& rollout : rollouts) {
    rollout.text.tokens = std::ssize(rollout.completion);
    sampled.push_back(rollout.text);
    if (turns_) sampled.back().judged = rollout.rewards.at(WeightedReward{WeightedReward::Kind::command}.name());
  }
  const std::vector<std::vector<double>> values = rewards_.values(sampled);
  for (size_t i = 0; i < rollouts.size(); ++i) {
    for (size_t k = 0; k < values[i].size(); ++k) rollouts[i].rewards[rewards_.kinds()[k].name()] = values[i][k];
    rollouts[i].reward =
        rewards_.sum(values[i]) + overlong_penalty(std::ssize(rollouts[i].completion), config.max_completion_length,
                                                   config.overlong_buffer_len, config.overlong_penalty_factor);
  }
}

// Rewards whole groups, whose rows follow each other, unless something has failed, or adds why it fails.
void Rollouts::reward(std::vector<Rollout>& rollouts, std::string& failure) try {
  if (!failure.empty() || stopped_ != RunEnd::none) return;
  const RolloutConfig& config = parts_.config->rollout;
  const Stopwatch watch;
  score(rollouts);
  rewards_s_ += watch.seconds();
  const auto n = static_cast<size_t>(config.num_generations);
  for (size_t first = 0; first < rollouts.size(); first += n) {
    std::vector<double> group;
    for (size_t i = 0; i < n; ++i) group.push_back(rollouts[first + i].reward);
    const std::vector<double> advantages = group_advantages(group, config.scale_rewards);
    for (size_t i = 0; i < n; ++i) {
      rollouts[first + i].advantage = advantages[i];
      rollouts[first + i].skipped = all_equal(group);
    }
  }
} catch (const RewardError& error) {
  failure = error.what();
}

// Samples the rows that ranks ask for, and returns those that this one asked for, in order; collective. `mine`: the
// rows that this rank samples, if any rank asks for them. Ranks that divide a model sample them together, and the first
// of these ranks keeps them; ranks that need each other's weights or experts sample all.
std::vector<Rollout> Rollouts::sample_asked(int64_t step, const std::vector<int64_t>& asked,
                                            const std::vector<int64_t>& mine, std::string& failure) {
  std::string all;
  for (const int64_t row : asked) all += cat(row, '\n');
  const std::vector<std::string> of_ranks = gather_texts(parts_.world, parts_.host, all);
  all.clear();
  for (const std::string& of_rank : of_ranks) all += of_rank;
  all = broadcast_text(parts_.world, parts_.host, all, 0);
  if (all.empty()) return {};
  const bool lockstep = samples_in_lockstep(*parts_.config);
  std::vector<int64_t> rows;
  std::istringstream numbers(all);
  for (int64_t row = 0; numbers >> row;)
    if (lockstep || std::ranges::binary_search(mine, row)) rows.push_back(row);
  std::ranges::sort(rows);
  rows.erase(std::ranges::unique(rows).begin(), rows.end());
  const bool keeps = keeps_answers();
  std::vector<Rollout> sampled = sample(step, rows, keeps ? std::span(asked) : std::span<const int64_t>(), failure);
  if (!keeps) return {};
  std::erase_if(sampled, [&](const Rollout& rollout) { return !std::ranges::binary_search(asked, rollout.row); });
  return sampled;
}

// Dynamic sampling (DAPO, arXiv:2503.14476): a group whose rewards are all equal makes room for the answers to a prompt
// that comes later in the data. Its rows are numbered beyond those of any run, which gives them seeds of their own.
// Returns the answers that were replaced.
std::vector<Rollout> Rollouts::replace_equal(int64_t step, const std::vector<int64_t>& rows, std::vector<Rollout>& own,
                                             std::string& failure) {
  std::vector<Rollout> replaced;
  const RolloutConfig& config = parts_.config->rollout;
  const int64_t n = config.num_generations,
                apart = std::max<int64_t>(parts_.data.train->per_epoch() / config.max_num_gen_batches, 1);
  for (int64_t time = 1; time < config.max_num_gen_batches && stopped_ == RunEnd::none; ++time) {
    const int64_t beyond = time * (apart + kPromptsOfReplacement) * n;
    std::vector<size_t> places;
    std::vector<int64_t> asked, mine;
    for (const int64_t row : rows) mine.push_back(row + beyond);
    for (size_t i = 0; i < own.size() && failure.empty(); ++i)
      if (own[i].skipped) {
        places.push_back(i);
        asked.push_back(own[i].row + beyond);
      }
    std::vector<Rollout> others = sample_asked(step, asked, mine, failure);
    reward(others, failure);
    for (size_t i = 0; i < others.size() && failure.empty() && stopped_ == RunEnd::none; ++i) {
      others[i].row = own[places[i]].row;
      others[i].replaced = time;
      replaced.push_back(std::exchange(own[places[i]], std::move(others[i])));
      replaced.back().discarded = true;
    }
  }
  std::ranges::stable_sort(replaced, {}, &Rollout::row);
  return replaced;
}

// Rank 0 writes the answers of all ranks that belong to the step of these rows, discarded ones after the others.
void Rollouts::write(int64_t step, int64_t first, const std::vector<Rollout>& own,
                     const std::vector<Rollout>& replaced) const {
  std::string text;
  for (const auto& answers : {std::span(own), std::span(replaced)}) {
    std::string lines;
    for (const Rollout& rollout : answers)
      if (rollout.row >= first && rollout.row < first + rows_of_step()) lines += rollout.to_line();
    for (const std::string& of_rank : gather_texts(parts_.world, parts_.host, lines)) text += of_rank;
  }
  if (!is_rank_zero()) return;
  fs::create_directories(parts_.folder.rollouts());
  write_file_atomically(rollout_file(parts_.folder.rollouts(), step), text);
}

// Rank 0 writes what all have sampled, a file for each step. A failed reward stops all ranks, after that.
void Rollouts::generate(int64_t step, int64_t consumed) {
  const RunConfig& config = *parts_.config;
  parts_.engine.gather_values();
  const std::vector<int64_t> rows = rows_to_sample(consumed);
  std::string failure;
  std::vector<Rollout> own = sample_asked(step, rows, rows, failure);
  reward(own, failure);
  std::vector<Rollout> replaced = replace_equal(step, rows, own, failure);
  if (stopped_ != RunEnd::none) return;
  for (auto* const answers : {&own, &replaced})
    for (Rollout& rollout : *answers) rollout.sampled_at = step;
  for (int64_t i = 0; i < config.rollout.steps_per_generation; ++i)
    write(step + i, consumed + i * rows_of_step(), own, replaced);
  require_rewards(failure);  // after the answers were kept
  if (is_rank_zero()) remove_unfinished(parts_.folder.rollouts());
  sampled_ = {step, step + config.rollout.steps_per_generation - 1, config.temperature()};
}

void Rollouts::remove_old(int64_t step) const {
  const int64_t kept = parts_.config->rollout.keep_rollouts;
  if (kept == 0 || !is_rank_zero()) return;
  std::vector<int64_t> checkpoints;
  for (const auto& [saved, folder] : step_folders(parts_.folder.checkpoints())) checkpoints.push_back(saved);
  remove_old_rollouts(parts_.folder.rollouts(), step, kept, checkpoints);
}

// The step's rows that are trained on, on all ranks.
std::vector<Rollout> Rollouts::read(int64_t step, int64_t first) const {
  const fs::path file = rollout_file(parts_.folder.rollouts(), step);
  std::string text;
  if (is_rank_zero() && fs::exists(file)) text = read_file(file);
  text = broadcast_text(parts_.world, parts_.host, text, 0);
  std::vector<Rollout> rollouts;
  for_lines(text, [&](std::string_view line) {
    rollouts.push_back(Rollout::of_line(line, cat(file.string(), ", line ", rollouts.size() + 1)));
  });
  std::erase_if(rollouts, [](const Rollout& rollout) { return rollout.discarded; });
  std::ranges::sort(rollouts, {}, &Rollout::row);
  require<DataError>(std::ssize(rollouts) == rows_of_step() && rollouts.front().row == first, file.string(), ": has ",
                     rollouts.empty() ? std::string("nothing") : cat("rows from ", rollouts.front().row, " on"),
                     ", where step ", step, " trains on ", rows_of_step(), " rows from ", first,
                     " on, which were sampled before step ", sampled_.first,
                     ": restore the file, resume from a checkpoint before that step, or begin a new run");
  return rollouts;
}

void Rollouts::summarize(const std::vector<Rollout>& all) {
  nothing_counts_ =
      std::ranges::none_of(all, [&](const Rollout& rollout) { return rollout.is_trained(*parts_.config); });
  const auto share = [&](const auto& value) {
    double sum = 0;
    for (const Rollout& rollout : all) sum += static_cast<double>(value(rollout));
    return sum / static_cast<double>(all.size());
  };
  const double mean = share([](const Rollout& one) { return one.reward; });
  figures_.set(kReward, mean);
  figures_.set(kRewardStd,
               std::sqrt(share([&](const Rollout& one) { return (one.reward - mean) * (one.reward - mean); })));
  figures_.set(kCompletionLength, share([](const Rollout& one) { return one.sampled_tokens(); }));
  figures_.set(kEqualGroups, share([](const Rollout& one) { return one.skipped; }));
  figures_.set(kPromptTokensRead, static_cast<double>(std::exchange(prompt_tokens_, 0)));
  figures_.set(kSamplingTime, std::exchange(sampling_s_, 0));
  figures_.set(kRewardTime, std::exchange(rewards_s_, 0));
  figures_.set(kCutCompletions, share([](const Rollout& one) { return !one.ended; }));
  figures_.set(kEmptyCompletions, share([](const Rollout& one) { return one.text.completion.empty(); }));
  if (parts_.config->rollout.max_num_gen_batches > 1)
    figures_.set(kGenerationBatches, share([](const Rollout& one) { return 1 + one.replaced; }));
  if (turns_) {
    figures_.set(kTurns, share([](const Rollout& one) { return one.text.turn; }));
    figures_.set(kInsertedTokens,
                 share([](const Rollout& one) { return std::ssize(one.completion) - one.sampled_tokens(); }));
    figures_.set(kCutByTurns, share([](const Rollout& one) { return one.cut_by_turns; }));
    figures_.set(kRewrittenAnswers, share([](const Rollout& one) { return one.rewritten; }));
  }
  if (rewards_.kinds().size() > 1)
    for (const WeightedReward& kind : rewards_.kinds())
      figures_.set(cat("reward_", kind.name()), share([&](const Rollout& one) {
                     const auto found = one.rewards.find(kind.name());
                     return found == one.rewards.end() ? 0 : found->second;
                   }));
}

std::vector<Batch> Rollouts::next(int64_t step, int64_t consumed) {
  const RunConfig& config = *parts_.config;
  if (step > sampled_.last) generate(step, consumed);
  if (stopped_ != RunEnd::none) return {};
  const std::vector<Rollout> all = read(step, consumed);
  remove_old(step);
  summarize(all);
  std::vector<Batch> batches;
  const std::vector<int64_t> rows = own_rows(consumed);
  if (config.rollout.router_replay) {
    const auto first = all.begin() + (rows.front() - consumed);
    routes_ = routes_of({first, first + std::ssize(rows)}, config);
  }
  const auto in_batch = static_cast<size_t>(config.train.micro_batch_size);
  for (size_t i = 0; i < rows.size(); i += in_batch) {
    const auto begin = all.begin() + (rows[i] - consumed);
    batches.push_back(batch_of({begin, begin + static_cast<int64_t>(in_batch)}, config));
  }
  return batches;
}

}  // namespace witan

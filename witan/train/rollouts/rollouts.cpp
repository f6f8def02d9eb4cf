#include "witan/train/rollouts/rollouts.h"

#include <fmt/format.h>

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
#include "witan/comm/texts.h"
#include "witan/generate/chosen_routes.h"
#include "witan/tokenizer/files/base64.h"
#include "witan/train/rollouts/sampling.h"
#include "witan/train/rollouts/unfinished.h"
#include "witan/train/step/features/step_routes.h"
#include "witan/train/step/sequence_objectives.h"

namespace witan {
namespace {

// Prompts from here on, and from its multiples on, replace those of groups with equal rewards.
constexpr int64_t kPromptsOfReplacement = int64_t{1} << 30;

// The places [begin, end) of a conversation's last answer; both 0 if it has none.
std::pair<size_t, size_t> last_answer(const std::vector<float>& loss) {
  size_t end = loss.size();
  while (end > 0 && loss[end - 1] <= 0) --end;
  size_t begin = end;
  while (begin > 0 && loss[begin - 1] > 0) --begin;
  return {begin, end};
}

// Calls each(line) for the lines of a text.
template <class Each>
void for_lines(std::string_view text, const Each& each) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    each(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

// Numbers of experts, as base64 of two bytes each, the lower one first.
std::string packed_routes(const std::vector<int32_t>& routes) {
  std::string bytes;
  for (const int32_t expert : routes) {
    bytes.push_back(static_cast<char>(expert & 255));
    bytes.push_back(static_cast<char>(expert >> 8));
  }
  return to_base64(bytes);
}

std::vector<int32_t> unpacked_routes(const std::string& text, std::string_view where) {
  const std::optional<std::string> bytes = from_base64(text);
  require<DataError>(bytes && bytes->size() % 2 == 0, where, ": \"routes\" is no base64 of pairs of bytes");
  std::vector<int32_t> routes;
  for (size_t i = 0; i < bytes->size(); i += 2)
    routes.push_back(static_cast<unsigned char>((*bytes)[i]) | static_cast<unsigned char>((*bytes)[i + 1]) << 8);
  return routes;
}

}  // namespace

std::string Rollout::to_line() const {
  Json line = {{"row", row},
               {"prompt", text.prompt},
               {"completion", text.completion},
               {"answer", text.answer},
               {"prompt_tokens", prompt},
               {"completion_tokens", completion},
               {"logprobs", logprobs},
               {"ended", ended},
               {"reward", reward},
               {"advantage", advantage},
               {"skipped", skipped},
               {"rewards", rewards},
               {"replaced", replaced}};
  if (discarded) line["discarded"] = true;
  if (!routes.empty()) line["routes"] = packed_routes(routes);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
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
  if (read.contains("routes")) rollout.routes = unpacked_routes(read.at("routes").get<std::string>(), where);
  rollout.rewards = read.value("rewards", rollout.rewards);
  rollout.replaced = read.value("replaced", rollout.replaced);
  rollout.discarded = read.value("discarded", rollout.discarded);
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

std::vector<int32_t> routes_of(const std::vector<Rollout>& rollouts, const RunConfig& config) {
  const std::vector<LayerSpec> layers = config.model.layers();
  const int64_t K = config.model.moe.moe_router_topk, E = config.model.moe.num_experts;
  const int64_t routers = std::ranges::count_if(layers, [](const LayerSpec& layer) { return layer.moe; });
  const int64_t S = config.data.seq_length, rows = std::ssize(rollouts);  // rows follow each other in micro-batches
  std::vector<int32_t> routes(static_cast<size_t>(routers * rows * S * K));
  for (int64_t r = 0; r < routers; ++r)
    for (int64_t row = 0; row < rows; ++row) {
      const Rollout& rollout = rollouts[static_cast<size_t>(row)];
      const int64_t read = std::ssize(rollout.prompt) + std::ssize(rollout.completion) - 1;
      require<DataError>(std::ssize(rollout.routes) == read * routers * K &&
                             std::ranges::all_of(rollout.routes, [&](int32_t expert) { return expert < E; }),
                         "rollout ", rollout.row, " has ", rollout.routes.size(), " routes, where ", read, " tokens, ",
                         routers, " routers and ", K, " of ", E,
                         " experts need others: resume from the checkpoint at which its sampling began");
      for (int64_t place = 0; place < S; ++place)
        for (int64_t k = 0; k < K; ++k)
          routes[static_cast<size_t>(((r * rows + row) * S + place) * K + k)] =
              place < read ? rollout.routes[static_cast<size_t>((place * routers + r) * K + k)]
                           : static_cast<int32_t>(k);
    }
  return routes;
}

void require_prompts(const SampleSource& samples) {
  const TokenDataset& conversations = samples.dataset();
  const int64_t most = samples.sequence_length() + 1;
  int64_t beyond = 0, first = -1, tokens = 0;
  for (int64_t document = 0; document < conversations.documents(); ++document) {
    std::vector<float> loss(static_cast<size_t>(conversations.length(document)));
    conversations.read_loss(document, 0, loss);
    const auto begin = static_cast<int64_t>(last_answer(loss).first);
    const auto shown = std::span(loss).first(static_cast<size_t>(std::min(most, std::ssize(loss))));
    if (std::ranges::none_of(shown, [](float weight) { return weight > 0; })) continue;  // samples leave it out
    require<DataError>(begin > 0, conversations.name(), ": conversation ", document,
                       " begins with its answer, so that there is no prompt to continue: give a user's message first");
    if (begin < most) continue;
    if (beyond++ == 0) first = document, tokens = begin;
  }
  require<DataError>(beyond == 0, conversations.name(), ": the prompts of ", counted(beyond, "conversation"), " of ",
                     conversations.documents(), " leave no room for an answer in seq_length + 1 = ", most,
                     " tokens (that of conversation ", first, " has ", tokens,
                     "): raise seq_length, or remove these conversations");
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

fs::path Rollouts::file_of(int64_t step) const {
  return parts_.folder.rollouts() / fmt::format("step-{:08}.jsonl", step);
}

// A conversation longer than a sample is read whole, since its reference must be.
Rollout Rollouts::begin(int64_t row) const {
  const SampleSource& samples = *parts_.data.train;
  const int64_t prompt = row / parts_.config->rollout.num_generations % kPromptsOfReplacement;
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

// Answers that ended before the run was killed, by the same weights, are taken from RUN/rollouts.
std::vector<Rollout> Rollouts::sample(int64_t step, const std::vector<int64_t>& rows) {
  Engine& engine = parts_.engine;
  const RunConfig& config = *parts_.config;
  const Interrupted interrupted = find_interrupted(step);
  std::vector<Rollout> kept, begun;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto found = interrupted.answers.find(rows[i]);
    if (found == interrupted.answers.end())
      begun.push_back(begin(rows[i]));
    else
      kept.push_back(found->second);
  }
  std::unique_ptr<AppendFile> file;
  if (writes_unfinished())
    file = open_unfinished(parts_.folder.rollouts(), parts_.groups.rank(), interrupted.identity, kept);
  ChosenRoutes routes(engine.model().routers());
  StepRoutes* const replay = config.rollout.router_replay ? engine.feature<StepRoutes>() : nullptr;
  if (replay) replay->between_passes(&routes);
  const Sampling with{
      engine.stream(),           engine.model(), parts_.groups, config, *parts_.data.tokenizer, parts_.ends,
      replay ? &routes : nullptr};
  const Stopwatch watch;
  const int64_t read = sample_rollouts(with, begun, [&](const Rollout& answer) {
    if (file) file->append(answer.to_line());
  });
  sampling_s_ += watch.seconds();
  if (replay) replay->between_passes(nullptr);
  engine.end_reading();
  for (const int64_t of_rank : gather_numbers(parts_.world, parts_.host, writes_unfinished() ? read : 0))
    prompt_tokens_ += of_rank;
  std::ranges::move(kept, std::back_inserter(begun));
  std::ranges::sort(begun, {}, &Rollout::row);
  return begun;
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
    const std::string identity = Json{
        {"step", step},
        {"weights", hash_hex(weights.data(), weights.size())},
        {"seed", config.train.seed},
        {"seq_length", config.data.seq_length},
        {"num_generations", rollout.num_generations},
        {"max_completion_length", rollout.max_completion_length},
        {"kv_cache_dtype", rollout.cache.kv_cache_dtype},
        {"cache_mla_latents", rollout.cache.cache_mla_latents},
        {"stop_strings",
         rollout.stop_strings}}.dump();
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
    interrupted.answers.emplace(answer.row, std::move(answer));
  });
  return interrupted;
}

// Rewards whole groups, whose rows follow each other.
void Rollouts::reward(std::vector<Rollout>& rollouts) {
  const RolloutConfig& config = parts_.config->rollout;
  std::vector<SampledAnswer> sampled;
  for (Rollout& rollout : rollouts) {
    rollout.text.tokens = std::ssize(rollout.completion);
    sampled.push_back(rollout.text);
  }
  const Stopwatch watch;
  const std::vector<std::vector<double>> values = rewards_.values(sampled);
  rewards_s_ += watch.seconds();
  const auto n = static_cast<size_t>(config.num_generations);
  for (size_t i = 0; i < rollouts.size(); ++i) {
    for (size_t k = 0; k < values[i].size(); ++k) rollouts[i].rewards[rewards_.kinds()[k].name()] = values[i][k];
    rollouts[i].reward =
        rewards_.sum(values[i]) + overlong_penalty(std::ssize(rollouts[i].completion), config.max_completion_length,
                                                   config.overlong_buffer_len, config.overlong_penalty_factor);
  }
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

// Samples the rows that ranks ask for, and returns those that this one asked for, in order; collective. `mine`: the
// rows that this rank samples, if any rank asks for them. Ranks that divide a model sample them together, and the first
// of these ranks keeps them; ranks that need each other's weights or experts sample all.
std::vector<Rollout> Rollouts::sample_asked(int64_t step, const std::vector<int64_t>& asked,
                                            const std::vector<int64_t>& mine) {
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
  std::vector<Rollout> sampled = sample(step, rows);
  if (!keeps_answers()) return {};
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
  for (int64_t time = 1; time < config.max_num_gen_batches; ++time) {
    const int64_t beyond = time * (apart + kPromptsOfReplacement) * n;
    std::vector<size_t> places;
    std::vector<int64_t> asked, mine;
    for (const int64_t row : rows) mine.push_back(row + beyond);
    for (size_t i = 0; i < own.size() && failure.empty(); ++i)
      if (own[i].skipped) {
        places.push_back(i);
        asked.push_back(own[i].row + beyond);
      }
    std::vector<Rollout> others = sample_asked(step, asked, mine);
    try {
      reward(others);
    } catch (const RewardError& error) {
      failure = error.what();
    }
    for (size_t i = 0; i < others.size() && failure.empty(); ++i) {
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
  write_file_atomically(file_of(step), text);
}

// Rank 0 writes what all have sampled, a file for each step. A failed reward stops all ranks, after that.
void Rollouts::generate(int64_t step, int64_t consumed) {
  const RunConfig& config = *parts_.config;
  parts_.engine.gather_values();
  const std::vector<int64_t> rows = rows_to_sample(consumed);
  std::vector<Rollout> own = sample_asked(step, rows, rows);
  std::string failure;
  try {
    reward(own);
  } catch (const RewardError& error) {
    failure = error.what();
  }
  const std::vector<Rollout> replaced = replace_equal(step, rows, own, failure);
  for (int64_t i = 0; i < config.rollout.steps_per_generation; ++i)
    write(step + i, consumed + i * rows_of_step(), own, replaced);
  const std::vector<std::string> failures = gather_texts(parts_.world, parts_.host, failure);
  for (const std::string& of_rank : failures)
    if (failure.empty()) failure = of_rank;
  failure = broadcast_text(parts_.world, parts_.host, failure, 0);
  if (!failure.empty()) throw RewardError(failure);  // the answers are kept
  if (is_rank_zero()) remove_unfinished(parts_.folder.rollouts());
}

// The step's rows that are trained on, on all ranks.
std::vector<Rollout> Rollouts::read(int64_t step, int64_t first) const {
  const fs::path file = file_of(step);
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
  figures_.set(kRewardStd,
               std::sqrt(share([&](const Rollout& one) { return (one.reward - mean) * (one.reward - mean); })));
  figures_.set(kCompletionLength, share([](const Rollout& one) { return one.completion.size(); }));
  figures_.set(kEqualGroups, share([](const Rollout& one) { return one.skipped; }));
  figures_.set(kPromptTokensRead, static_cast<double>(std::exchange(prompt_tokens_, 0)));
  figures_.set(kSamplingTime, std::exchange(sampling_s_, 0));
  figures_.set(kRewardTime, std::exchange(rewards_s_, 0));
  figures_.set(kCutCompletions, share([](const Rollout& one) { return !one.ended; }));
  figures_.set(kEmptyCompletions, share([](const Rollout& one) { return one.text.completion.empty(); }));
  if (parts_.config->rollout.max_num_gen_batches > 1)
    figures_.set(kGenerationBatches, share([](const Rollout& one) { return 1 + one.replaced; }));
  if (rewards_.kinds().size() > 1)
    for (const WeightedReward& kind : rewards_.kinds())
      figures_.set(cat("reward_", kind.name()), share([&](const Rollout& one) {
                     const auto found = one.rewards.find(kind.name());
                     return found == one.rewards.end() ? 0 : found->second;
                   }));
}

std::vector<Batch> Rollouts::next(int64_t step, int64_t consumed) {
  const RunConfig& config = *parts_.config;
  if ((step - 1) % config.rollout.steps_per_generation == 0) generate(step, consumed);
  const std::vector<Rollout> all = read(step, consumed);
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

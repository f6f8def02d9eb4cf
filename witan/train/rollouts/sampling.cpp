#include "witan/train/rollouts/sampling.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "witan/base/numbers/rng.h"
#include "witan/generate/generation_batch.h"
#include "witan/generate/text_stream.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

// The most answers that are sampled at a time.
int64_t answers_at_once(const RunConfig& config) {
  const int64_t all = config.train.global_batch_size * config.rollout.steps_per_generation,
                n = config.rollout.num_generations, context = config.parallel.context_parallel_size;
  const int64_t prompts = all / n / config.parallel.data_ranks();
  const int64_t rows = samples_in_lockstep(config) ? all : (prompts + context - 1) / context * n;
  const int64_t most = config.rollout.rollout_batch_size;
  return most > 0 ? std::min(rows, most) : rows;
}

// The prompt of a group has a row beside one for an answer.
StateSize state_size(const RunConfig& config) {
  return {.rows = std::max<int64_t>(2, answers_at_once(config)), .positions = config.data.seq_length + 1};
}

// Answers must not depend on which states are still there, so that a run which was killed continues to the same bits.
GenerationMode mode_of(const RunConfig& config, const Groups& groups) {
  const bool plain = config.rollout.cache.kv_cache_dtype == "auto" && config.rollout.cache.cache_mla_latents != "true";
  return {.repeatable = config.parallel.batch_invariant_mode,
          .reuse_prefixes = plain,
          .pipeline = &groups.of(Axis::pipeline),
          .cache = config.rollout.cache,
          .temperature = config.temperature()};
}

// Rollouts that begin with the same prompt, or one that goes on.
using SamePrompt = std::span<Rollout* const>;

std::vector<int32_t> tokens_before(const Rollout& rollout) {
  std::vector<int32_t> tokens = rollout.prompt;
  tokens.insert(tokens.end(), rollout.completion.begin(), rollout.completion.end());
  return tokens;
}

// Longest prompts first: those that are read together have similar lengths, and the longest texts do not come last.
std::vector<SamePrompt> by_prompt(const std::vector<Rollout*>& rollouts, int64_t size) {
  std::vector<SamePrompt> groups;
  for (size_t first = 0, next = 0; first < rollouts.size(); first = next) {
    const auto same = [&](const Rollout& other) {
      return other.row / size == rollouts[first]->row / size && other.completion.empty() &&
             rollouts[first]->completion.empty();
    };
    do ++next;
    while (next < rollouts.size() && same(*rollouts[next]));
    groups.push_back(SamePrompt(rollouts).subspan(first, next - first));
  }
  std::ranges::stable_sort(groups, std::ranges::greater(), [](SamePrompt group) {
    return group.front()->prompt.size() + group.front()->completion.size();
  });
  return groups;
}

GenerationRequest request_of(const Rollout& rollout, const RunConfig& config, const Tokenizer& tokenizer) {
  GenerationRequest request{tokens_before(rollout), {}, /*top_logprobs=*/0};
  request.options.vocab_size = tokenizer.vocab_size();
  request.options.max_tokens = rollout.room(config);
  return request;
}

// An answer as it is sampled.
class Answer {
 public:
  Answer(Rollout& rollout, const Tokenizer& tokenizer, const AnswerEnds& ends)
      : rollout_(rollout), tokenizer_(tokenizer), ends_(ends) {
    if (!ends.strings.empty()) shown_.emplace(tokenizer, ends.strings);
  }

  // Whether the answer goes on after this token.
  bool goes_on(int32_t token) {
    if (std::ranges::find(ends_.tokens, token) != ends_.tokens.end()) return false;
    if (!shown_) return true;
    text_ += shown_->push(token);
    return !shown_->stopped();
  }

  // Earlier answers keep the routes with which they were sampled, though their tokens may have been read again.
  Rollout& finish(const Generation& generation) {
    const auto known = std::min(rollout_.routes.size(), generation.routes.size());
    rollout_.routes.insert(rollout_.routes.end(), generation.routes.begin() + static_cast<ptrdiff_t>(known),
                           generation.routes.end());
    const size_t before = rollout_.completion.size();
    for (const GeneratedToken& token : generation.tokens) {
      rollout_.completion.push_back(token.token);
      rollout_.logprobs.push_back(token.logprob.value());
    }
    rollout_.ended = generation.finish == Finish::stopped_by_caller;
    const auto written = std::span(rollout_.completion).subspan(before);
    rollout_.text.completion =
        shown_ ? text_ + shown_->flush() : tokenizer_.decode(written.first(written.size() - (rollout_.ended ? 1 : 0)));
    return rollout_;
  }

 private:
  Rollout& rollout_;
  const Tokenizer& tokenizer_;
  const AnswerEnds& ends_;
  std::optional<TextStream> shown_;  // finds stop strings; empty if there are none
  std::string text_;
};

}  // namespace

// A rank can sample alone, or with its tensor-parallel ranks, if these hold all experts: expert tensor parallelism must
// not reach beyond them.
bool samples_in_lockstep(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t experts = config.model.moe.num_experts;
  return parallel.expert_ranks(static_cast<int>(parallel.ranks), experts) > 1 ||
         parallel.tensor_model_parallel_size % parallel.expert_tensor_ranks(experts) != 0 ||
         parallel.sharding() == Sharding::parameters;
}

// A step reads the prompts of at most a micro-batch, so that it takes no more memory than the layers of a step.
void rehearse_rollouts(Stream& stream, Transformer& model, const Groups& groups, const RunConfig& config) {
  const StateSize size = state_size(config);
  const int64_t begun = std::min(size.rows - 1, config.train.micro_batch_size), running = size.rows - 1 - begun;
  GenerationBatch batch(stream, model, size, mode_of(config, groups));
  GenerationRequest request{{0}, {}, /*top_logprobs=*/0};
  request.options.max_tokens = 2;
  for (int64_t i = 0; i < running; ++i) batch.admit(request);
  batch.step();
  request.prompt.resize(static_cast<size_t>(config.data.seq_length));
  request.options.max_tokens = 1;
  const std::vector<uint64_t> seeds(static_cast<size_t>(config.rollout.num_generations));
  for (int64_t i = 0; i < begun; ++i) batch.admit_group(request, seeds);
  batch.step();
  batch.rehearse();
}

RolloutSampler::RolloutSampler(const Sampling& with)
    : with_(with), batch_(with.stream, with.model, state_size(with.config), [&] {
        GenerationMode mode = mode_of(with.config, with.groups);
        mode.routes = with.routes;
        if (with.evaluates) mode.temperature = 1;
        return mode;
      }()) {}

// Ranks that sample together make the same calls, so that they must stop after the same token.
RunEnd RolloutSampler::asked_together() {
  if (!with_.asked) return RunEnd::none;
  auto asked = static_cast<float>(with_.asked());
  const bool lockstep = samples_in_lockstep(with_.config);
  for (Group* group : lockstep ? std::vector{&with_.groups.world()}
                               : std::vector{&with_.groups.of(Axis::tensor), &with_.groups.of(Axis::pipeline)}) {
    if (group->size() == 1) continue;
    const Tensor shared = with_.stream.empty({1}, DType::f32);
    with_.stream.write(shared, &asked);
    group->all_reduce(with_.stream, shared, Reduce::max);
    with_.stream.read(&asked, shared);
  }
  return static_cast<RunEnd>(static_cast<int>(asked));
}

int64_t RolloutSampler::sample(const std::vector<Rollout*>& rollouts, const OnAnswer& on_answer) {
  const RunConfig& config = with_.config;
  const TraceContextScope trace_context(with_.stream, TraceContext::Phase::sample);
  const std::vector<SamePrompt> prompts = by_prompt(rollouts, config.rollout.num_generations);
  std::map<size_t, Answer> answers;  // by number in the batch
  const auto goes_on = [&](size_t number, const GeneratedToken& token) {
    return answers.at(number).goes_on(token.token);
  };
  int64_t read = 0;
  auto next = prompts.begin();
  while (next != prompts.end() || !batch_.idle()) {
    if (stopped_ = asked_together(); stopped_ != RunEnd::none) return read;
    for (int64_t begun = 0; begun < config.train.micro_batch_size && next != prompts.end(); ++begun, ++next) {
      if (!batch_.has_room(next->size())) break;
      std::vector<uint64_t> seeds;
      for (const Rollout* rollout : *next)
        seeds.push_back(Philox::stream_of(cat("rollout ", config.train.seed, ' ', rollout->row)));
      GenerationRequest request = request_of(*next->front(), config, with_.tokenizer);
      if (with_.evaluates) request.options.sampler.temperature = config.rollout.rollout_eval_temperature;
      size_t number = batch_.admit_group(std::move(request), seeds);
      for (Rollout* rollout : *next) answers.try_emplace(number++, *rollout, with_.tokenizer, with_.ends);
    }
    batch_.step(goes_on);
    for (const auto& [number, generation] : batch_.take_finished()) {
      const auto answer = answers.find(number);
      Rollout& rollout = answer->second.finish(generation);
      read += std::ssize(rollout.prompt) + std::ssize(rollout.completion) - std::ssize(generation.tokens) -
              generation.cached_prompt_tokens;
      if (on_answer) on_answer(rollout);
      answers.erase(answer);
    }
  }
  return read;
}

}  // namespace witan

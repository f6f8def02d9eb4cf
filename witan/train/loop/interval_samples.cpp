#include "witan/train/loop/interval_samples.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/generate/generation_batch.h"
#include "witan/generate/input_files.h"
#include "witan/train/data/run_conversations.h"

namespace witan {

std::vector<std::string> interval_prompts(const TrainConfig& train) {
  if (train.sample_interval == 0) return {};
  if (train.sample_prompts.empty()) return {train.sample_prompt};
  return read_prompt_file(train.sample_prompts);
}

namespace {

// Renders the prompts by the chat template; they stay as they are if there is none, or it accepts no single message.
SamplePrompts prompts_by(const std::optional<FoundChatTemplate>& found, const TrainConfig& train) {
  const SamplePrompts plain{train.sample_prompt, interval_prompts(train)};
  if (!found) return plain;
  const auto conversation = [&](const std::string& question) {
    const std::vector<ChatMessage> messages = {{"user", question}};
    return found->chat.render(messages, {.add_generation_prompt = true,
                                         .bos_token = found->bos_token,
                                         .eos_token = found->eos_token,
                                         .now = kTrainingDay});
  };
  SamplePrompts prompts = plain;
  try {
    prompts.last = conversation(prompts.last);
    std::ranges::transform(prompts.interval, prompts.interval.begin(), conversation);
  } catch (const DataError&) {
    return plain;
  }
  prompts.chat = true;
  return prompts;
}

}  // namespace

SamplePrompts sample_prompts(const RunConfig& config) {
  return prompts_by(config.data.sft ? chat_template_of(config) : std::nullopt, config.train);
}

SamplePrompts sample_prompts(const RunConfig& config, const Tokenizer& tokenizer) {
  if (!config.data.sft) return sample_prompts(config);
  const fs::path run = fs::path(config.train.runs_folder) / config.train.run;
  const auto format = find_chat_template(run) ? kept_conversation_format(config.data, tokenizer, run)
                                              : find_conversation_format(config, tokenizer);
  const FoundChatTemplate found{format->chat, format->bos_token, format->eos_token};
  SamplePrompts prompts = prompts_by(found, config.train);
  if (!prompts.chat) return prompts;
  if (const auto end = end_of_turn(found, tokenizer)) prompts.ends.push_back(*end);
  return prompts;
}

std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt, bool chat) {
  return chat ? tokenizer.encode(prompt, /*allow_special=*/true) : tokenizer.encode_prompt(prompt);
}

std::vector<int32_t> encode_sample_prompt(const Tokenizer& tokenizer, const std::string& prompt, bool chat) {
  std::vector<int32_t> tokens = prompt_ids(tokenizer, prompt, chat);
  if (!tokens.empty()) return tokens;
  const auto end_of_text = tokenizer.end_of_text();
  require<DataError>(end_of_text.has_value(),
                     "a prompt of sample_interval is empty, and the tokenizer has no end-of-text token to start from: "
                     "set sample_prompt or sample_prompts");
  return {*end_of_text};
}

uint64_t sample_seed(const TrainConfig& train, int64_t step) {
  return static_cast<uint64_t>(train.seed) + static_cast<uint64_t>(step);
}

std::vector<std::string> generate_samples(Stream& stream, Transformer& model, const Tokenizer& tokenizer,
                                          const TrainConfig& train, const SamplePrompts& prompts, uint64_t seed) {
  std::vector<GenerationRequest> requests;
  StateSize size{1, 0};
  for (const std::string& prompt : prompts.interval) {
    GenerationRequest request{encode_sample_prompt(tokenizer, prompt, prompts.chat), {}};
    const auto tokens = static_cast<int64_t>(request.prompt.size());
    request.options.max_tokens = tokens_that_fit(model, tokens, train.sample_tokens);
    request.options.vocab_size = tokenizer.vocab_size();
    request.options.end_of_text = tokenizer.end_of_text();
    request.options.stop_tokens = prompts.ends;
    request.options.sampler.temperature = train.sample_temperature;
    request.options.sampler.seed = seed;
    if (request.options.max_tokens > 0) size.positions = std::max(size.positions, tokens + request.options.max_tokens);
    requests.push_back(std::move(request));
  }
  std::vector<std::string> texts(requests.size());
  if (size.positions == 0) return texts;
  GenerationBatch batch(stream, model, size);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].options.max_tokens == 0) continue;
    batch.admit(std::move(requests[i]));
    while (!batch.idle()) batch.step();
    std::vector<int32_t> tokens;
    for (const auto& [number, generation] : batch.take_finished())
      for (const GeneratedToken& token : generation.tokens) tokens.push_back(token.token);
    texts[i] = tokenizer.decode(tokens);
  }
  return texts;
}

}  // namespace witan

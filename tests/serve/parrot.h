// A model for tests of the server: it repeats its prompt forever, and tests can pause it.
#pragma once

#include <algorithm>
#include <string>

#include "support/words.h"
#include "witan/base/threads/mutex.h"
#include "witan/serve/served_model.h"

namespace witan::test {

// State shared by the parrot's engines and the test.
class Parrot {
 public:
  explicit Parrot(size_t rooms = 3) : rooms_(rooms) {}

  // Makes steps wait until release().
  void hold() { set_held(true); }
  void release() { set_held(false); }
  // The number of sequences in each step.
  std::vector<size_t> steps() {
    const MutexLock lock(mutex_);
    return steps_;
  }
  void wait_for_steps(size_t count) {
    MutexLock lock(mutex_);
    while (steps_.size() < count) changed_.wait(lock);
  }
  // Waits until the model has been told to stop a sequence.
  void wait_for_stop() {
    MutexLock lock(mutex_);
    while (!stopped_) changed_.wait(lock);
  }

  void begin_step(size_t sequences) {
    MutexLock lock(mutex_);
    steps_.push_back(sequences);
    changed_.notify_all();
    while (held_) changed_.wait(lock);
  }
  void stopped() {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  // The requests so far.
  std::vector<GenerationRequest> asked() {
    const MutexLock lock(mutex_);
    return asked_;
  }
  void ask(const GenerationRequest& request) {
    const MutexLock lock(mutex_);
    asked_.push_back(request);
  }
  size_t rooms() const { return rooms_; }

 private:
  void set_held(bool held) {
    const MutexLock lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }

  const size_t rooms_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<size_t> steps_ WITAN_GUARDED_BY(mutex_);
  std::vector<GenerationRequest> asked_ WITAN_GUARDED_BY(mutex_);
  bool held_ WITAN_GUARDED_BY(mutex_) = false, stopped_ WITAN_GUARDED_BY(mutex_) = false;
};

// Token i of an answer is token i of the prompt, starting over at its end. Its log probability is -id / 100, and the
// most likely alternatives are 0, 1, 2 …. Prompts that begin with 'E' are not admitted, steps with a prompt containing
// 'F' fail, and 'Z' ends a text.
class ParrotEngine : public serve::BatchEngine {
 public:
  explicit ParrotEngine(Parrot& parrot) : parrot_(parrot) {}

  bool has_room() const override { return running_.size() < parrot_.rooms(); }
  bool idle() const override { return running_.empty(); }
  size_t admit(GenerationRequest request) override {
    parrot_.ask(request);
    if (request.prompt.at(0) == 'E') throw std::runtime_error("the parrot cannot say E");
    Text text{admitted_++, std::move(request), {}};
    if (text.request.prompt_logprobs)
      for (const int32_t id : text.request.prompt) text.out.prompt.push_back(token(id, text.request));
    if (text.request.prompt_logprobs) text.out.prompt[0] = {text.request.prompt[0], {}, {}};
    running_.push_back(std::move(text));
    return running_.back().number;
  }
  void step(const OnToken& on_token) override {
    parrot_.begin_step(running_.size());
    for (const Text& text : running_)
      if (std::ranges::count(text.request.prompt, 'F') > 0) throw std::runtime_error("the parrot has fainted");
    std::erase_if(running_, [&](Text& text) {
      if (!advance(text, on_token)) return false;
      finished_.emplace_back(text.number, std::move(text.out));
      return true;
    });
  }
  std::vector<std::pair<size_t, Generation>> take_finished() override { return std::exchange(finished_, {}); }

 private:
  struct Text {
    size_t number;
    GenerationRequest request;
    Generation out;
  };

  static GeneratedToken token(int32_t id, const GenerationRequest& request) {
    GeneratedToken out{id, {}, {}};
    if (request.top_logprobs < 0) return out;
    out.logprob = static_cast<float>(-id) / 100;
    for (int32_t likely = 0; likely < request.top_logprobs; ++likely)
      out.top.push_back({likely, static_cast<float>(-likely) / 100});
    return out;
  }
  // Whether the sequence has ended.
  bool advance(Text& text, const OnToken& on_token) {
    const auto& [prompt, options, top, of_prompt] = text.request;
    const auto full = [&] { return static_cast<int64_t>(text.out.tokens.size()) >= options.max_tokens; };
    if (full()) return true;
    const int32_t id = prompt[text.out.tokens.size() % prompt.size()];
    if (id == 'Z') {
      text.out.finish = Finish::stop;
      return true;
    }
    text.out.tokens.push_back(token(id, text.request));
    if (on_token(text.number, text.out.tokens.back())) return full();
    parrot_.stopped();
    text.out.finish = Finish::stopped_by_caller;
    return true;
  }

  Parrot& parrot_;
  size_t admitted_ = 0;
  std::vector<Text> running_;
  std::vector<std::pair<size_t, Generation>> finished_;
};

// Moves the first letter of a prompt forward in the alphabet by the number of identical prompts just before it. Reports
// some tokens of each prompt as cached.
class VariedParrot : public ParrotEngine {
 public:
  explicit VariedParrot(Parrot& parrot, int64_t known = 0) : ParrotEngine(parrot), known_(known) {}

  size_t admit(GenerationRequest request) override {
    same_ = request.prompt == before_ ? same_ + 1 : 0;
    before_ = request.prompt;
    request.prompt[0] += same_;
    return ParrotEngine::admit(std::move(request));
  }
  std::vector<std::pair<size_t, Generation>> take_finished() override {
    auto finished = ParrotEngine::take_finished();
    for (auto& [number, generation] : finished) generation.cached_prompt_tokens = known_;
    return finished;
  }

 private:
  const int64_t known_;
  std::vector<int32_t> before_;
  int32_t same_ = 0;
};

// The parrot as a served model. Its prompt is the concatenated contents of a conversation.
inline serve::ServedModel served(Parrot& parrot, int64_t most_tokens = 1000) {
  serve::ServedModel model{.name = "parrot",
                           .tokenizer = tokenizer_of({}, true),
                           .encode_chat = {},
                           .no_chat = {},
                           .tool_format = {},
                           .defaults = {},
                           .most_tokens = most_tokens,
                           .make_engine = [&parrot] { return std::make_unique<ParrotEngine>(parrot); }};
  model.encode_chat = [](const serve::ChatRequest& request, int64_t) {
    std::vector<int32_t> tokens;
    for (const auto& message : request.messages)
      for (const char byte : nlohmann::json::parse(message.json)["content"].get<std::string>())
        tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  };
  return model;
}

}  // namespace witan::test

// A batch of texts that one model continues together, and generate(), which runs a batch to its end. Texts may arrive
// at different times and have different lengths. A text that ends leaves its place to another, and its states to one
// that begins with the same tokens, such as the next question of a conversation.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "witan/generate/cache_options.h"
#include "witan/generate/chosen_routes.h"
#include "witan/generate/next_tokens.h"
#include "witan/generate/recorded_steps.h"
#include "witan/generate/request.h"
#include "witan/model/transformer.h"

namespace witan {

struct GenerationMode {
  // On a GPU, use kernels that give each text the same bits whatever else is in the batch, those of the training
  // forward in batch-invariant mode; on a CPU they always do.
  bool repeatable = false;
  // On one GPU, run steps of one token per text as CUDA graphs (RecordedSteps): for a model that is not sharded and
  // whose routes are not recorded.
  bool recorded = false;
  // Continue the states of ended texts for prompts that begin with the same tokens (GenerationBatch::admit()).
  bool reuse_prefixes = true;
  // The stages of a pipeline, which hold the layers; null: this rank holds all of them. Texts have no scored prompts
  // and no top tokens then.
  Group* pipeline = nullptr;
  // Records the routes of all routers, for Generation::routes. Null: they are not wanted.
  const ChosenRoutes* routes = nullptr;
  CacheOptions cache = {};
  // Divides the logits of all texts, for their draws and log probabilities alike. The temperature of a text's own
  // sampler divides them once more, for draws alone.
  double temperature = 1;
};

class GenerationBatch {
 public:
  // Called with a request's number and its new token; returning false stops the request, which keeps the token.
  using OnToken = std::function<bool(size_t request, const GeneratedToken& token)>;

  // `size`: the most concurrent texts, and the most tokens of each, including its prompt. Allocates the memory of their
  // states. Throws ConfigError for caches that the model or the mode rules out (resolve_cache()).
  GenerationBatch(Stream& stream, Transformer& model, StateSize size, GenerationMode mode = {});
  GenerationBatch(const GenerationBatch&) = delete;
  GenerationBatch& operator=(const GenerationBatch&) = delete;

  // Whether there is room for another text, or for a group: the texts of a group begin as rows become free, but beside
  // the row of their prompt they need another one.
  bool has_room(size_t texts = 1) const { return free_.size() > (texts > 1 ? 1 : 0); }
  // Begins a text, for which there must be room; returns its number, which counts from 0. Throws DataError for an empty
  // prompt or ids outside the vocabulary, ConfigError for invalid options, or a text longer than a row of the states or
  // than the model's learned positions. The leading tokens that the prompt shares with an ended text are not computed
  // again, except for the last one, and unless their log probabilities are wanted. On a CPU, and in repeatable mode,
  // this changes no bit of the result, unless caches hold latents or are in e4m3: tokens that follow a cached prefix
  // read it as it is cached, others as it was computed.
  size_t admit(GenerationRequest request);
  // Begins a group of texts that differ in their seeds alone, at least one; returns the number of the first, which the
  // others follow. The prompt is read once, and its states are copied for each text, so that a text is what admit()
  // would give. The prompt's log probabilities cannot be asked for, and each text has a token at least.
  size_t admit_group(GenerationRequest request, std::span<const uint64_t> seeds);
  // Computes all pending tokens, new prompts included, and gives each text its next token. With expert, tensor or
  // pipeline parallelism every rank makes the same calls and gets the same tokens. Throws DivergedError if no token can
  // be chosen.
  void step(const OnToken& on_token = {});
  // In a dry run that had all texts at once: runs steps with fewer texts, as they may end at different times.
  void rehearse();
  // Whether all texts have ended.
  bool idle() const { return running_.empty() && prompts_.empty(); }
  // The texts that have ended since the last call.
  std::vector<std::pair<size_t, Generation>> take_finished() { return std::exchange(finished_, {}); }

 private:
  // The text whose states a row holds.
  struct Row {
    int64_t number = 0;
    std::vector<int32_t> tokens = {};  // tokens read so far, from position 0 on
    int64_t reach = 0;                 // number of positions written since a text began in this row
    std::vector<int32_t> routes = {};  // of these tokens, if they are recorded
  };
  struct Text {
    size_t number;
    GenerationRequest request;
    Sampler sampler;
    Row row = {};
    int64_t past = 0;           // tokens that have been read
    int32_t unread = 0;         // the token after them
    GeneratedToken first = {};  // of a text that waits for a row
    SeenTokens seen = {};       // only if logits are changed
    Generation out = {};
    bool ended = false;
  };
  // The prompt of texts that have not begun. Its row becomes that of the last of them.
  struct Prompt {
    Row row;
    int64_t past;                 // tokens that have been read
    std::vector<int32_t> unread;  // those after them; empty: the first tokens of the texts are known
    std::deque<Text> texts;
    std::vector<int32_t> routes = {};  // of the tokens that have been read

    bool scored() const { return past == 0 && texts.front().request.prompt_logprobs; }
  };

  // A row for a prompt, and the number of its tokens that need not be computed.
  struct Place {
    Row row;
    int64_t past = 0;
  };

  Place take_row(const GenerationRequest& request);
  int64_t reusable(const Row& row, const GenerationRequest& request) const;
  std::vector<int64_t> reusable_of_rows(const GenerationRequest& request);
  std::vector<GeneratedToken> choose(const Tensor& own, const std::vector<Text*>& texts);
  void share_choice(std::vector<GeneratedToken>& chosen);
  bool divides_layers() const { return pipeline_ != nullptr && pipeline_->size() > 1; }
  bool has_head() const { return !divides_layers() || pipeline_->rank() == pipeline_->size() - 1; }
  Residual read_layers(const ModelInput& input);
  Tensor logits_of_step(const std::vector<kernels::CacheRun>& runs, std::span<const int32_t> tokens);
  void note_routes();
  void begin_texts(const OnToken& on_token);
  Row free_row();
  void accept(Text& text, GeneratedToken token, const OnToken& on_token);
  void end(Text& text, Finish finish);

  Stream& stream_;
  Transformer& model_;
  StateSize size_;
  bool repeatable_;
  bool reuses_;
  Group* pipeline_;
  const ChosenRoutes* routes_;
  NextTokens next_;
  SequenceStates states_;
  std::optional<RecordedSteps> recorded_;
  std::deque<Row> free_;  // the row that has been free for the longest time comes first
  std::vector<Text> running_;
  std::deque<Prompt> prompts_;
  std::vector<std::pair<size_t, Generation>> finished_;
  size_t admitted_ = 0;
};

// Throws what GenerationBatch::admit() throws for a request that the model cannot answer, however large its states are.
void check_request(const Transformer& model, const GenerationRequest& request);

// The number of `wanted` tokens that may follow a prompt, given the model's number of positions.
int64_t tokens_that_fit(const Transformer& model, int64_t prompt_tokens, int64_t wanted);

// Continues `prompt` (at least one token). `on_token` gets each new token as it is generated. With expert parallelism
// every rank makes this call with the same arguments and gets the same tokens. Throws what GenerationBatch::admit() and
// step() throw.
std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token = {},
                              GenerationMode mode = {});

// Runs all requests as one batch. Each gives what it would give alone, to the bit on a CPU and, on a GPU, if `mode` is
// repeatable. `on_token` may stop a request, by its index in `requests`.
std::vector<Generation> generate(Stream& stream, Transformer& model, std::span<const GenerationRequest> requests,
                                 const GenerationBatch::OnToken& on_token = {}, GenerationMode mode = {});

}  // namespace witan

// Several texts that one model continues together. They may have come at different times and be of different lengths;
// a text that ends leaves its place to another, and its keys and values to one that begins with the same tokens, as the
// next question of a conversation does.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "witan/generate/request.h"
#include "witan/model/transformer.h"
#include "witan/tensor/queue.h"

namespace witan {

// Steps in which each text has one new token, as most steps of a generation have. They are short and have many kernels,
// which on a GPU take longer to launch than to run. So for each number of texts the kernels are captured as one CUDA
// graph. Tokens and positions are read from fixed addresses.
class RecordedSteps {
 public:
  // For at most `texts` at a time, whose earlier tokens are in the states; these and the model must outlive it. Takes
  // the memory of their logits.
  RecordedSteps(Stream& stream, Transformer& model, const SequenceStates& states, int64_t texts);

  // Whether this model's kernels can be captured on this stream now: each may be timed, or looked at, and experts that
  // are computed one after the other are counted by the host.
  static bool possible(Stream& stream, const ModelConfig& config);
  // The logits [n, V] of n texts' next tokens, given one of each; they stand until the next call.
  Tensor logits(const std::vector<kernels::CacheRun>& runs, std::span<const int32_t> tokens);

 private:
  struct Recording {
    bool warm = false;  // it has run once as it comes: libraries are loaded and have chosen their kernels
    std::unique_ptr<Graph> graph;
  };

  ModelInput input_of(const std::vector<kernels::CacheRun>& runs) const;
  void compute(const ModelInput& input);

  Stream& stream_;
  Transformer& model_;
  const SequenceStates& states_;
  Tensor tokens_, positions_, rows_;       // [texts] int32
  Tensor logits_;                          // [texts, V]
  std::map<int64_t, Recording> recorded_;  // by the number of texts
};

struct GenerationMode {
  // On a GPU, kernels that give each text the same bits whatever else is in the batch, those of the training forward in
  // batch-invariant mode; on a CPU they always do.
  bool repeatable = false;
  // On one GPU, steps of one token for each text are CUDA graphs (generate/generation_batch.h): for a model that is
  // whole there and whose routes nobody records. Repeatable steps are not.
  bool recorded = false;
};

class GenerationBatch {
 public:
  // Of a request, by its number; false stops it, and the token stays part of it.
  using OnToken = std::function<bool(size_t request, const GeneratedToken& token)>;

  // `size`: how many texts at a time, and of how many tokens with their prompts. The memory of states is taken here.
  GenerationBatch(Stream& stream, Transformer& model, StateSize size, GenerationMode mode = {});
  GenerationBatch(const GenerationBatch&) = delete;
  GenerationBatch& operator=(const GenerationBatch&) = delete;

  // Whether another text has room.
  bool has_room() const { return !free_.empty(); }
  // Begins a text, for which there must be room; its number counts from 0. Throws DataError for an empty prompt or ids
  // outside of the vocabulary, ConfigError for options that mean nothing, or a text longer than a row of the states or
  // than the positions that the model has learned. Tokens that the prompt has in common with a text that has ended,
  // from the first on, are not computed again, but for a last one and unless their log probabilities are wanted; on a
  // CPU, and in the repeatable way, this changes no bit of the result.
  size_t admit(GenerationRequest request);
  // Reads what has not been read, new prompts among it, and gives each text its next token. With expert parallelism
  // every rank makes the same calls and gets the same tokens. Throws DivergedError where no token can be chosen.
  void step(const OnToken& on_token = {});
  // Of a dry run in which all texts were there together: steps of smaller numbers of them, as they end sooner or later.
  void rehearse();
  // Whether all texts have ended.
  bool idle() const { return running_.empty(); }
  // Those that have ended since the last call.
  std::vector<std::pair<size_t, Generation>> take_finished() { return std::exchange(finished_, {}); }

 private:
  // The text that a row of the states still holds.
  struct Row {
    int64_t number = 0;
    std::vector<int32_t> tokens = {};  // that it has read, from position 0 on
    int64_t reach = 0;                 // positions from 0 on that have been written since a text began there
  };
  struct Text {
    size_t number;
    GenerationRequest request;
    Sampler sampler;
    Row row;
    int64_t past;
    std::vector<int32_t> unread;  // after `past` tokens
    SeenTokens seen = {};         // where logits are changed
    Generation out = {};
    bool ended = false;
  };

  // A row for a prompt, and how many of its tokens need not be computed.
  struct Place {
    Row row;
    int64_t past = 0;
  };

  Place take_row(const GenerationRequest& request);
  int64_t reusable(const Row& row, const GenerationRequest& request) const;
  int64_t vocabulary(const GenerateOptions& options) const;  // how many ids may be sampled
  void score_prompt(Text& text, const Residual& x, int64_t first);
  Tensor logits_of_step(const std::vector<kernels::CacheRun>& runs, std::span<const int32_t> tokens);
  std::vector<int32_t> greedy_choices(const Tensor& logits, const std::vector<Text*>& texts);
  void sample(const Tensor& logits, const OnToken& on_token);
  std::vector<float> row_of(const Tensor& logits, int64_t row) const;  // from what read_rows() brought
  void read_rows(const Tensor& logits);
  void accept(Text& text, GeneratedToken token, const OnToken& on_token);
  void end(Text& text, Finish finish);

  Stream& stream_;
  Transformer& model_;
  StateSize size_;
  bool repeatable_;
  SequenceStates states_;
  std::optional<RecordedSteps> recorded_;
  std::deque<Row> free_;       // the one that has been free for the longest time is the first
  std::vector<Text> running_;  // in the order of their numbers: those that only read their prompt now are the last
  std::vector<std::pair<size_t, Generation>> finished_;
  size_t admitted_ = 0;
  std::vector<std::byte> host_;  // logits
};

// Throws what GenerationBatch::admit() throws for a request that the model cannot answer, however large the caches.
void check_request(const Transformer& model, const GenerationRequest& request);

// How many of `wanted` tokens may follow a prompt, given the model's number of positions.
int64_t tokens_that_fit(const Transformer& model, int64_t prompt_tokens, int64_t wanted);

// Continues `prompt` (at least one token). `on_token` gets each new token as it is generated. With expert parallelism
// every rank calls this with the same arguments and gets the same tokens.
// Throws what GenerationBatch::admit() and step() throw.
std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token = {},
                              GenerationMode mode = {});

// All requests as one batch; each gives what it would give alone, to the bit on a CPU and, on a GPU, where `mode` is
// repeatable. `on_token` may stop a request, by its number in `requests`.
std::vector<Generation> generate(Stream& stream, Transformer& model, std::span<const GenerationRequest> requests,
                                 const GenerationBatch::OnToken& on_token = {}, GenerationMode mode = {});

}  // namespace witan

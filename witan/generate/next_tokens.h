// Chooses the next tokens of texts from their logits, and scores tokens that are given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "witan/generate/logprobs.h"
#include "witan/generate/request.h"
#include "witan/model/transformer.h"

namespace witan {

// A text that is continued.
struct ContinuedText {
  const GenerationRequest& request;
  const Sampler& sampler;
  const SeenTokens& seen;  // if the sampler changes logits
  int64_t past;            // tokens that have been read
};

// Works on the device; the host reads tokens and log probabilities, and the logits of a text only if they are changed
// before its token is drawn or if its likeliest tokens are wanted. Tensor-parallel ranks make the same calls and get
// the same tokens.
class NextTokens {
 public:
  // Both must outlive this. Logits are divided by the temperature before anything else.
  NextTokens(Stream& stream, Transformer& model, double temperature = 1)
      : stream_(stream), model_(model), temperature_(temperature) {}

  // The next token of each text from its row of the logits, of which `own` are this rank's columns. Throws
  // DivergedError if there is none to choose. The logits may be overwritten.
  std::vector<GeneratedToken> choose(const Tensor& own, std::span<const ContinuedText> texts);
  // The prompt's tokens, each scored from the logits of the previous one; x[first] belongs to the first of them.
  std::vector<GeneratedToken> score_prompt(const GenerationRequest& request, const Residual& x, int64_t first);

 private:
  int64_t vocabulary(const GenerationRequest& request) const;  // number of ids that may be sampled
  void temper(const Tensor& logits);
  Tensor draw(const Tensor& logits, std::span<const ContinuedText> texts);
  void draw_from_changed(const Tensor& ids, const Tensor& logits, std::span<const ContinuedText> texts);
  RowScores scores_of(const Tensor& own, const Tensor& logits, const Tensor& targets);
  void read_rows(const Tensor& logits);
  // From the rows that read_rows() copied: the words that may be sampled.
  std::vector<float> row_of(const Tensor& logits, int64_t row, const GenerationRequest& request) const;
  std::vector<float> read_row(const Tensor& logits, size_t row, const GenerationRequest& request);

  Stream& stream_;
  Transformer& model_;
  const double temperature_;
  std::vector<std::byte> host_;  // logits on the host
};

}  // namespace witan

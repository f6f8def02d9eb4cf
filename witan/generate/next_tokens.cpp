#include "witan/generate/next_tokens.h"

#include <algorithm>
#include <numeric>

#include "witan/base/threads/threads.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/kernels/vocabulary/sampling.h"

namespace witan {
namespace {

// Rows of a prompt that are scored at a time, since logits of a large vocabulary need much memory.
constexpr int64_t kScoredAtOnce = 256;

}  // namespace

int64_t NextTokens::vocabulary(const GenerationRequest& request) const {
  const int64_t words = model_.config().vocab_size, wanted = request.options.vocab_size;
  return wanted > 0 ? std::min(wanted, words) : words;
}

void NextTokens::read_rows(const Tensor& logits) {
  host_.resize(static_cast<size_t>(logits.bytes()));
  stream_.read(host_.data(), logits);
}

std::vector<float> NextTokens::row_of(const Tensor& logits, int64_t row, const GenerationRequest& request) const {
  std::vector<float> out(static_cast<size_t>(vocabulary(request)));
  dispatch_floating(logits.dtype(), [&]<class T>() {
    const T* from = reinterpret_cast<const T*>(host_.data()) + row * logits.size(1);
    std::transform(from, from + out.size(), out.begin(), [](T value) { return static_cast<float>(value); });
  });
  return out;
}

std::vector<float> NextTokens::read_row(const Tensor& logits, size_t row, const GenerationRequest& request) {
  read_rows(logits.narrow(0, static_cast<int64_t>(row), 1));
  return row_of(logits, 0, request);
}

// The next tokens [texts] int32, drawn on the device.
Tensor NextTokens::draw(const Tensor& logits, std::span<const ContinuedText> texts) {
  std::vector<kernels::SamplingRow> rows;
  for (const ContinuedText& text : texts) rows.push_back(text.sampler.row(vocabulary(text.request), text.past));
  const auto n = static_cast<int64_t>(rows.size());
  const Tensor ids = stream_.empty({n}, DType::i32),
               on_device = stream_.empty({n, kernels::kSamplingRowWords}, DType::i32);
  stream_.write(on_device, rows.data());
  const kernels::Choice most = std::ranges::max(rows, {}, &kernels::SamplingRow::choice).choice;
  kernels::sample_tokens(stream_, ids, logits, on_device, most);
  const auto changes = [](const ContinuedText& text) { return text.sampler.changes_logits(); };
  if (std::ranges::any_of(texts, changes) && !stream_.is_meta()) draw_from_changed(ids, logits, texts);
  return ids;
}

// Penalties and biases are applied on the host, which reads the logits of texts that have them.
void NextTokens::draw_from_changed(const Tensor& ids, const Tensor& logits, std::span<const ContinuedText> texts) {
  std::vector<int32_t> tokens(texts.size());
  stream_.read(tokens.data(), ids);
  std::vector<std::vector<float>> rows(texts.size());
  for (size_t i = 0; i < texts.size(); ++i)
    if (texts[i].sampler.changes_logits()) rows[i] = read_row(logits, i, texts[i].request);
  stream_.pool().run(static_cast<int64_t>(texts.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const Sampler& sampler = texts[i].sampler;
    if (sampler.changes_logits()) tokens[i] = sampler.next(sampler.changed(rows[i], texts[i].seen), texts[i].past);
  });
  stream_.write(ids, tokens.data());
}

// Log probabilities as training computes them: from their own columns where ranks divide the logits (`own`).
RowScores NextTokens::scores_of(const Tensor& own, const Tensor& logits, const Tensor& targets) {
  RowScores scores = score_rows(stream_, logits, targets, model_.config().vocab_size);
  if (!model_.divides_losses()) return scores;
  Tape tape(stream_, Tape::Mode::off);
  const int64_t n = targets.elements();
  const DType A = accumulator(own.dtype());
  const Tensor ones = stream_.empty({n}, A);
  dispatch_floating(A, [&]<class T>() {
    const std::vector<T> values(static_cast<size_t>(n), T(1.0f));
    stream_.write(ones, values.data());
    const Tensor losses = model_.token_losses(tape, tape.constant(own), targets, ones).losses.value();
    if (stream_.is_meta()) return;
    std::vector<T> found(values.size());
    stream_.read(found.data(), losses);
    std::ranges::transform(found, scores.logprobs.begin(), [](T loss) { return -static_cast<float>(loss); });
  });
  return scores;
}

// As training divides the logits of a policy, so that its log probabilities have the same bits.
void NextTokens::temper(const Tensor& logits) {
  if (temperature_ != 1) kernels::scale(stream_, logits, Write::overwrite, logits, 1 / temperature_);
}

// Everything is queued before the host reads the tokens.
std::vector<GeneratedToken> NextTokens::choose(const Tensor& own, std::span<const ContinuedText> texts) {
  temper(own);
  const Tensor logits = model_.whole_logits(stream_, own), ids = draw(logits, texts);
  RowScores scores;
  if (std::ranges::any_of(texts, [](const ContinuedText& text) { return text.request.top_logprobs >= 0; }))
    scores = scores_of(own, logits, ids);
  std::vector<int32_t> tokens(texts.size());
  stream_.read(tokens.data(), ids);
  std::vector<GeneratedToken> chosen(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const GenerationRequest& request = texts[i].request;
    if (tokens[i] < 0) texts[i].sampler.next(read_row(logits, i, request), texts[i].past);  // throws
    chosen[i].token = tokens[i];
    if (request.top_logprobs >= 0) chosen[i].logprob = scores.logprobs[i];
    if (request.top_logprobs > 0 && !stream_.is_meta())
      chosen[i].top = likeliest(read_row(logits, i, request), scores.lse[i], request.top_logprobs);
  }
  return chosen;
}

std::vector<GeneratedToken> NextTokens::score_prompt(const GenerationRequest& request, const Residual& x,
                                                     int64_t first) {
  const std::vector<int32_t>& prompt = request.prompt;
  const auto scored = static_cast<int64_t>(prompt.size()) - 1;
  const bool top = request.top_logprobs > 0 && !stream_.is_meta();
  std::vector<GeneratedToken> out;
  for (const int32_t token : prompt) out.push_back({token, {}, {}});
  for (int64_t begin = 0; begin < scored; begin += kScoredAtOnce) {
    const int64_t count = std::min(kScoredAtOnce, scored - begin);
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first + begin));
    const Tensor own = model_.logits(stream_, x, rows);
    temper(own);
    const Tensor logits = model_.whole_logits(stream_, own);
    const Tensor targets = stream_.empty({count}, DType::i32);
    stream_.write(targets, prompt.data() + begin + 1);
    const RowScores scores = scores_of(own, logits, targets);
    if (top) read_rows(logits);
    stream_.pool().run(count, [&](int64_t row) {
      const auto i = static_cast<size_t>(row);
      GeneratedToken& token = out[static_cast<size_t>(begin) + 1 + i];
      token.logprob = scores.logprobs[i];
      if (top) token.top = likeliest(row_of(logits, row, request), scores.lse[i], request.top_logprobs);
    });
  }
  return out;
}

}  // namespace witan

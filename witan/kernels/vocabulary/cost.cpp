#include <cassert>

#include "witan/kernels/vocabulary/sampling.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels {

// An exponential counts as 10 FLOPs; the forward reads the logits from memory once, since a row stays in cache.
void cross_entropy_forward(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& logits, const Tensor& targets, const Tensor& weights, int64_t words) {
  const Cost cost{13.0 * static_cast<double>(logits.elements()), bytes_of(losses, lse, logits, targets, weights)};
  WITAN_LAUNCH(stream, cross_entropy_forward, cost, loss, losses, lse, logits, targets, weights, words);
}

void cross_entropy_backward(Stream& stream, const Tensor& dlogits, const Tensor& dloss, const Tensor& logits,
                            const Tensor& lse, const Tensor& targets, const Tensor& weights,
                            const WordColumns& columns) {
  const Cost cost{12.0 * static_cast<double>(logits.elements()), bytes_of(dlogits, logits, lse, targets, weights)};
  WITAN_LAUNCH(stream, cross_entropy_backward, cost, dlogits, dloss, logits, lse, targets, weights, columns);
}

void cross_entropy_fused(Stream& stream, const CrossEntropyOutputs& out, const Tensor& logits, const Tensor& targets,
                         const Tensor& weights, int64_t words) {
  const Cost cost{25.0 * static_cast<double>(logits.elements()),
                  bytes_of(out.losses, out.lse, out.dlogits, logits, targets, weights)};
  WITAN_LAUNCH(stream, cross_entropy_fused, cost, out, logits, targets, weights, words);
}

void cross_entropy_part(Stream& stream, const Tensor& part, const Tensor& logits, const Tensor& targets,
                        const Tensor& weights, const WordColumns& columns) {
  const Cost cost{13.0 * static_cast<double>(logits.elements()), bytes_of(part, logits, targets, weights)};
  WITAN_LAUNCH(stream, cross_entropy_part, cost, part, logits, targets, weights, columns);
}

void cross_entropy_combine(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& parts, const Tensor& weights) {
  const Cost cost{7.0 * static_cast<double>(parts.elements()), bytes_of(losses, lse, parts, weights)};
  WITAN_LAUNCH(stream, cross_entropy_combine, cost, loss, losses, lse, parts, weights);
}

void token_entropies(Stream& stream, const Tensor& entropies, const Tensor& logits, const Tensor& lse,
                     const Tensor& weights, int64_t words) {
  const Cost cost{13.0 * static_cast<double>(logits.elements()), bytes_of(entropies, logits, lse, weights)};
  WITAN_LAUNCH(stream, token_entropies, cost, entropies, logits, lse, weights, words);
}

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w, int64_t begin) {
  WITAN_LAUNCH(stream, embedding_forward, (Cost{0, bytes_of(y, y, ids)}), y, ids, w, begin);
}

void embedding_backward(Stream& stream, const Tensor& dw, Write write, const Tensor& order, const Tensor& dy,
                        const Tensor& ids, int64_t begin) {
  WITAN_LAUNCH(stream, embedding_backward, (Cost{static_cast<double>(dy.elements()), bytes_of(dw, order, dy, ids)}), dw,
               write, order, dy, ids, begin);
}

void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words) {
  assert(logits.contiguous() && ids.shape() == Shape{logits.size(0)} && ids.dtype() == DType::i32);
  assert(words >= 1 && words <= logits.size(1));
  const auto compared = static_cast<double>(logits.size(0) * words);
  const Cost cost{compared, compared * static_cast<double>(size_of(logits.dtype())) + bytes_of(ids)};
  WITAN_LAUNCH(stream, likeliest_tokens, cost, ids, logits, words);
}

// Weights are 30 FLOPs; a GPU reads the logits for the largest, for the weights, and for candidates.
void sample_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, const Tensor& rows, Choice most) {
  assert(logits.contiguous() && ids.shape() == Shape{logits.size(0)} && ids.dtype() == DType::i32);
  assert(rows.contiguous() && rows.shape() == (Shape{logits.size(0), kSamplingRowWords}) && rows.dtype() == DType::i32);
  const auto elements = static_cast<double>(logits.elements()), bytes = bytes_of(logits);
  const double reads = most == Choice::likeliest ? 1 : most == Choice::by_id ? 2 : 3;
  const Cost cost{(most == Choice::likeliest ? 1.0 : 31.0) * elements, reads * bytes + bytes_of(ids, rows)};
  WITAN_LAUNCH(stream, sample_tokens, cost, ids, logits, rows, most);
}

}  // namespace witan::kernels

#include "witan/kernels/vocabulary/greedy.h"

#include <cassert>

namespace witan::kernels {

void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words) {
  assert(logits.contiguous() && ids.shape() == Shape{logits.size(0)} && ids.dtype() == DType::i32);
  assert(words >= 1 && words <= logits.size(1));
  const auto compared = static_cast<double>(logits.size(0) * words);
  const Cost cost{compared, compared * static_cast<double>(size_of(logits.dtype())) + bytes_of(ids)};
  WITAN_LAUNCH(stream, likeliest_tokens, cost, ids, logits, words);
}

}  // namespace witan::kernels

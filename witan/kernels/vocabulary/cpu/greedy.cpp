#include <limits>

#include "witan/base/threads.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cpu {
namespace {

template <class T>
int32_t likeliest_of_row(const T* logits, int64_t words) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float best = -kInfinity;
  int32_t id = -1;
  for (int64_t v = 0; v < words; ++v) {
    const auto logit = static_cast<float>(logits[v]);
    if (!(logit < kInfinity)) return -1;
    if (logit > best) best = logit, id = static_cast<int32_t>(v);
  }
  return id;
}

}  // namespace

void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words) {
  dispatch_floating(logits.dtype(), [&]<class T>() {
    stream.pool().run(logits.size(0), [&](int64_t t) {
      ids.data<int32_t>()[t] = likeliest_of_row(logits.data<T>() + t * logits.size(1), words);
    });
  });
}

}  // namespace witan::kernels::cpu

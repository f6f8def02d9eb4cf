#include <limits>

#include "witan/kernels/moe/dispatch.h"

namespace witan::kernels::cpu {

void choose_hosts(Stream&, const Tensor& hosts, const Tensor& ids, int64_t experts) {
  const int64_t T = ids.size(0), K = ids.size(1), C = hosts.size(1);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  for (int64_t t = 0; t < T; ++t) {
    const int32_t* of_token = ids.data<int32_t>() + t * K;
    int64_t last = -1;
    for (int64_t c = 0; c < C; ++c) {
      int64_t next = kNone;
      for (int64_t k = 0; k < K; ++k) {
        const int64_t host = of_token[k] < 0 ? kNone : of_token[k] / experts;
        if (host > last && host < next) next = host;
      }
      hosts.data<int32_t>()[t * C + c] = next == kNone ? -1 : static_cast<int32_t>(next);
      last = next;
    }
  }
}

void number_on_hosts(Stream&, const Tensor& numbers, const Tensor& ids, const Tensor& hosts, const Tensor& source,
                     int64_t experts) {
  const int64_t N = source.elements(), K = ids.size(1), C = hosts.size(1);
  for (int64_t n = 0; n < N; ++n) {
    const int64_t from = source.data<int64_t>()[n];
    const int64_t first = from < 0 ? 0 : hosts.data<int32_t>()[from] * experts;
    for (int64_t k = 0; k < K; ++k) {
      const int64_t number = from < 0 ? 0 : ids.data<int32_t>()[from / C * K + k] - first + 1;
      numbers.data<int32_t>()[n * K + k] = static_cast<int32_t>(number >= 1 && number <= experts ? number : 0);
    }
  }
}

}  // namespace witan::kernels::cpu

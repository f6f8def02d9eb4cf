#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/store.h"
#include "witan/kernels/pointwise/cpu/random_words.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels::cpu {

void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, double eps) {
  const Philox random = words_of(where);
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(y.elements(), kTaskElements / 8, [&](int64_t first, int64_t last) {
      uint64_t block = UINT64_MAX;
      std::array<uint32_t, 4> words{};
      for (int64_t i = first; i < last; ++i) {
        const auto e = static_cast<uint64_t>(where.part.element(i));
        if (e / 4 != block) words = random.block(block = e / 4);
        const A u = A(words[e % 4]) * A(0x1p-32);
        store(y.data<T>()[i], A(x.data<T>()[i]) * (1 + A(eps) * (2 * u - 1)));
      }
    });
  });
}

}  // namespace witan::kernels::cpu

#include "witan/tensor/random.h"

#include <algorithm>
#include <vector>

#include "witan/base/numbers/rng.h"

namespace witan {

void fill_normal(Stream& stream, const Tensor& to, uint64_t number, double scale) {
  constexpr int64_t kDrawn = 1 << 20;
  const Tensor flat = to.reshape({to.elements()});
  int64_t done = std::min(to.elements(), kDrawn);
  const Philox rng(1, number);
  dispatch_floating(to.dtype(), [&]<class T>() {
    std::vector<T> drawn(static_cast<size_t>(done));
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = T(rng.normal(i) * scale);
    stream.write(flat.narrow(0, 0, done), drawn.data());
  });
  for (int64_t more = 0; done < to.elements(); done += more) {
    more = std::min(done, to.elements() - done);
    stream.copy(flat.narrow(0, done, more), flat.narrow(0, 0, more));
  }
}

}  // namespace witan

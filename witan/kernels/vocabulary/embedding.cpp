#include "witan/kernels/vocabulary/embedding.h"

namespace witan::kernels {

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w, int64_t begin) {
  WITAN_LAUNCH(stream, embedding_forward, (Cost{0, bytes_of(y, y, ids)}), y, ids, w, begin);
}

void embedding_backward(Stream& stream, const Tensor& dw, Write write, const Tensor& order, const Tensor& dy,
                        const Tensor& ids, int64_t begin) {
  WITAN_LAUNCH(stream, embedding_backward, (Cost{static_cast<double>(dy.elements()), bytes_of(dw, order, dy, ids)}), dw,
               write, order, dy, ids, begin);
}

}  // namespace witan::kernels

#include <algorithm>

#include "witan/kernels/residual/streams.h"

namespace witan::kernels {
namespace {

double elements(const Tensor& tensor) {
  return static_cast<double>(tensor.elements());
}

}  // namespace

void stream_logits_forward(Stream& stream, const Tensor& logits, const Tensor& r, const Tensor& x, const Tensor& w,
                           double eps) {
  const Cost cost{2.0 * elements(x) * static_cast<double>(w.size(0) + 1), bytes_of(logits, r, x, w)};
  WITAN_LAUNCH(stream, stream_logits_forward, cost, logits, r, x, w, eps);
}

void stream_logits_backward_input(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& logits,
                                  const Tensor& r, const Tensor& x, const Tensor& w) {
  const Cost cost{2.0 * elements(x) * static_cast<double>(w.size(0) + 1), bytes_of(dx, dx, dlogits, logits, r, x, w)};
  WITAN_LAUNCH(stream, stream_logits_backward_input, cost, dx, dlogits, logits, r, x, w);
}

void stream_logits_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& parts,
                                   const Tensor& dlogits, const Tensor& r, const Tensor& x) {
  const Cost cost{2.0 * elements(x) * static_cast<double>(dlogits.shape().last()), bytes_of(dw, dlogits, r, x)};
  WITAN_LAUNCH(stream, stream_logits_backward_weight, cost, dw, write, parts, dlogits, r, x);
}

void stream_weights_forward(Stream& stream, const Tensor& pre, const Tensor& mix, const Tensor& logits,
                            const Tensor& base, const Tensor& scale, const StreamMixing& mixing) {
  const Cost cost{4.0 * elements(logits) * static_cast<double>(mixing.iterations),
                  bytes_of(pre, mix, logits, base, scale)};
  WITAN_LAUNCH(stream, stream_weights_forward, cost, pre, mix, logits, base, scale, mixing);
}

void stream_weights_backward(Stream& stream, const Tensor& dz, const Tensor& dlogits, const Tensor& dpre,
                             const Tensor& dmix, const Tensor& logits, const Tensor& base, const Tensor& scale,
                             const StreamMixing& mixing) {
  const Cost cost{12.0 * elements(logits) * static_cast<double>(mixing.iterations),
                  bytes_of(dz, dlogits, dpre, dmix, logits, base, scale)};
  WITAN_LAUNCH(stream, stream_weights_backward, cost, dz, dlogits, dpre, dmix, logits, base, scale, mixing);
}

void stream_scale_backward(Stream& stream, const Tensor& dscale, Write write, const Tensor& dz, const Tensor& logits,
                           int64_t streams) {
  WITAN_LAUNCH(stream, stream_scale_backward, (Cost{2.0 * elements(dz), bytes_of(dscale, dz, logits)}), dscale, write,
               dz, logits, streams);
}

void collapse_streams(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& pre) {
  WITAN_LAUNCH(stream, collapse_streams, (Cost{2.0 * elements(x), bytes_of(y, x, pre)}), y, x, pre);
}

void collapse_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dpre, const Tensor& dy, const Tensor& x,
                               const Tensor& pre) {
  const Cost cost{4.0 * elements(x), bytes_of(dx, dpre, dy, x, pre)};
  WITAN_LAUNCH(stream, collapse_streams_backward, cost, dx, dpre, dy, x, pre);
}

void expand_streams(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& mix) {
  const double n = elements(out) / std::max(elements(y), 1.0);
  const Cost cost{mix.defined() ? 2.0 * elements(out) * (n + 1) : 0.0, bytes_of(out, x, y, mix)};
  WITAN_LAUNCH(stream, expand_streams, cost, out, x, y, mix);
}

void expand_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& dmix, const Tensor& dout,
                             const Tensor& x, const Tensor& y, const Tensor& mix) {
  const double n = elements(dout) / std::max(elements(y), 1.0);
  const Cost cost{4.0 * elements(dout) * (n + 1), bytes_of(dx, dy, dmix, dout, x, y, mix)};
  WITAN_LAUNCH(stream, expand_streams_backward, cost, dx, dy, dmix, dout, x, y, mix);
}

}  // namespace witan::kernels

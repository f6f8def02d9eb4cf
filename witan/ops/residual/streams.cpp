#include "witan/ops/residual/streams.h"

#include "witan/kernels/norm/norm.h"

namespace witan::ops {
namespace {

using kernels::StreamMixing;

void check(const Var& x, const StreamParameters& with, const StreamMixing& mixing) {
  const int64_t n = mixing.streams, W = x.shape().last();
  require<ShapeError>(n >= 1 && n <= kernels::kMostStreams && W % n == 0, "read_streams: ", W,
                      " channels are not 1 to ", kernels::kMostStreams, " equal streams, of which there are ", n);
  require<ShapeError>(mixing.iterations >= 1 && mixing.iterations <= kernels::kMostSinkhornIterations,
                      "read_streams: ", mixing.iterations, " iterations, not 1 to ", kernels::kMostSinkhornIterations);
  const int64_t C = with.w.size(0);
  require<ShapeError>(C == n || C == n * (n + 2), "read_streams: w must have ", n, " or ", n * (n + 2), " rows, got ",
                      with.w.shape());
  require<ShapeError>(
      with.w.shape() == Shape({C, W}) && with.base.shape() == Shape{C} && with.scale.shape() == Shape{C == n ? 1 : 3},
      "read_streams: w must be ", Shape({C, W}), ", base [", C, "] and scale [", C == n ? 1 : 3, "], got ",
      with.w.shape(), ", ", with.base.shape(), " and ", with.scale.shape());
  for (const Var* parameter : {&with.w, &with.base, &with.scale})
    require<ShapeError>(parameter->dtype() == accumulator(x.dtype()), "read_streams: parameters must be ",
                        accumulator(x.dtype()), ", got ", parameter->dtype());
}

Shape with_channels(const Shape& shape, int64_t channels) {
  return shape.with(shape.dims() - 1, channels);
}

// All that the backward of read_streams() reads.
struct SavedRead {
  Saved x, r, logits, pre, w, base, scale;
  StreamMixing mixing;
};

void read_backward(Backward& b, const SavedRead& saved, const Tensor& dy, const Tensor& dmix) {
  Stream& s = b.stream();
  const Tensor x = b.value(saved.x), logits = b.value(saved.logits), r = b.value(saved.r);
  const Tensor dx = b.wants(saved.x) ? s.empty_like(x) : Tensor();
  Tensor dpre;
  if (dy.defined()) {
    dpre = s.empty({logits.size(0), saved.mixing.streams}, logits.dtype());
    kernels::collapse_streams_backward(s, dx, dpre, dy, x, b.value(saved.pre));
  } else if (dx.defined()) {
    s.zero(dx);
  }
  const Tensor dz = s.empty_like(logits), dlogits = s.empty_like(logits);
  kernels::stream_weights_backward(s, dz, dlogits, dpre, dmix, logits, b.value(saved.base), b.value(saved.scale),
                                   saved.mixing);
  b.write(saved.base, [&](const Tensor& to, Write how) { kernels::bias_backward(s, to, how, dz); });
  b.write(saved.scale, [&](const Tensor& to, Write how) {
    kernels::stream_scale_backward(s, to, how, dz, logits, saved.mixing.streams);
  });
  b.write(saved.w, [&](const Tensor& to, Write how) {
    const Tensor parts = s.empty({kernels::kStreamParts, to.elements()}, accumulator(x.dtype()), MemoryTag::workspace);
    kernels::stream_logits_backward_weight(s, to, how, parts, dlogits, r, x);
  });
  if (!dx.defined()) return;
  kernels::stream_logits_backward_input(s, dx, dlogits, logits, r, x, b.value(saved.w));
  b.add(saved.x, dx);
}

}  // namespace

ReadStreams read_streams(Tape& tape, const Var& x, const StreamParameters& with, const StreamMixing& mixing,
                         double norm_eps) {
  check(x, with, mixing);
  Stream& s = tape.stream();
  const int64_t T = x.shape().as_rows().first, n = mixing.streams, C = with.w.size(0);
  const DType wide = accumulator(x.dtype());
  const Tensor y = s.empty(with_channels(x.shape(), x.shape().last() / n), x.dtype());
  const Tensor logits = s.empty({T, C}, wide), r = s.empty({T}, wide), pre = s.empty({T, n}, wide);
  const Tensor mix = C > n ? s.empty({T, C - n}, wide) : Tensor();
  kernels::stream_logits_forward(s, logits, r, x.value(), with.w.value(), norm_eps);
  kernels::stream_weights_forward(s, pre, mix, logits, with.base.value(), with.scale.value(), mixing);
  kernels::collapse_streams(s, y, x.value(), pre);
  const SavedRead saved{tape.save(x),      tape.save(r),         tape.save(logits),     tape.save(pre),
                        tape.save(with.w), tape.save(with.base), tape.save(with.scale), mixing};
  std::vector<Tensor> outputs = {y};
  if (mix.defined()) outputs.push_back(mix);
  const std::vector<Var> out =
      tape.record("read_streams", std::move(outputs), {x, with.w, with.base, with.scale},
                  [saved](Backward& b, const std::vector<Tensor>& gradients) {
                    read_backward(b, saved, gradients[0], gradients.size() > 1 ? gradients[1] : Tensor());
                  });
  return {out[0], out.size() > 1 ? out[1] : Var()};
}

Var write_streams(Tape& tape, const Var& x, const Var& y, const Var& mix) {
  const int64_t D = y.shape().last(), n = x.shape().last() / std::max<int64_t>(D, 1);
  require<ShapeError>(x.shape() == with_channels(y.shape(), n * D) && x.dtype() == y.dtype(),
                      "write_streams: x must be streams of y's ", D, " channels, got ", x.dtype(), " ", x.shape(),
                      " and ", y.dtype(), " ", y.shape());
  require<ShapeError>(
      mix.shape() == Shape({y.shape().as_rows().first, n * (n + 1)}) && mix.dtype() == accumulator(x.dtype()),
      "write_streams: mix must be [T, n (n + 1)] for ", n, " streams, got ", mix.shape());
  Stream& s = tape.stream();
  const Tensor out = s.empty_like(x.value());
  kernels::expand_streams(s, out, x.value(), y.value(), mix.value());
  return tape.record("write_streams", out, {x, y, mix},
                     [x = tape.save(x), y = tape.save(y), mix = tape.save(mix)](Backward& b, const Tensor& dout) {
                       Stream& on = b.stream();
                       const Tensor in = b.value(x), added = b.value(y), weights = b.value(mix);
                       const Tensor dx = b.wants(x) ? on.empty_like(in) : Tensor();
                       const Tensor dy = on.empty_like(added), dmix = on.empty_like(weights);
                       kernels::expand_streams_backward(on, dx, dy, dmix, dout, in, added, weights);
                       if (dx.defined()) b.add(x, dx);
                       b.add(y, dy);
                       b.add(mix, dmix);
                     });
}

Var copy_to_streams(Tape& tape, const Var& y, int64_t n) {
  require<ShapeError>(n >= 1 && n <= kernels::kMostStreams, "copy_to_streams: ", n, " streams, not 1 to ",
                      kernels::kMostStreams);
  const Tensor out = tape.stream().empty(with_channels(y.shape(), n * y.shape().last()), y.dtype());
  kernels::expand_streams(tape.stream(), out, {}, y.value(), {});
  return tape.record("copy_to_streams", out, {y}, [y = tape.slot(y), shape = y.shape()](Backward& b, const Tensor& dx) {
    const Tensor dy = b.stream().empty(shape, dx.dtype());
    kernels::collapse_streams(b.stream(), dy, dx, {});
    b.add(y, dy);
  });
}

}  // namespace witan::ops

#include "witan/comm/context.h"

#include <algorithm>
#include <cassert>

#include "witan/base/error.h"
#include "witan/comm/peer_memory.h"
#include "witan/kernels/attention/sequence_pieces.h"
#include "witan/kernels/common/blocks.h"

namespace witan {
namespace {

// x [A, N, I], in which blocks of N change places with A.
Tensor swapped(Stream& stream, const Tensor& x) {
  const Tensor y = stream.empty({x.size(1), x.size(0), x.size(2)}, x.dtype());
  kernels::swap_blocks(stream, y, x);
  return y;
}

}  // namespace

kernels::PositionRuns context_positions(int64_t S, int ranks, int rank) {
  assert(ranks >= 1 && rank >= 0 && rank < ranks && S >= 0);
  if (ranks == 1) return {};
  const int64_t chunks = int64_t{2} * ranks, chunk = S / chunks, below = chunk * chunks;
  const std::string nearest = below > 0 ? cat(below, " or ", below + chunks) : cat(chunks);
  require<ConfigError>(below == S, "a sequence of ", S, " tokens cannot be split into two equal chunks for each of ",
                       ranks, " context-parallel ranks; the nearest length that can is ", nearest);
  return {.first = rank * chunk, .split = chunk, .second = (chunks - 1 - rank) * chunk};
}

// Chunks of all sequences lie together on the way: the c-th [B, S / 2n, I] of them, of 2n.
Tensor gather_positions(Stream& stream, const Tensor& part, Group& context) {
  const int64_t B = part.size(0), S = part.size(1) * context.size(), n = context.size(), elements = part.elements() / 2;
  const Tensor own = swapped(stream, part.reshape({B, 2, elements / B}));
  const Tensor ranks = stream.empty({2 * n, elements}, part.dtype());
  context.all_gather(stream, ranks, own.reshape({2, elements}));
  const Tensor chunks = stream.empty_like(ranks);
  for (int64_t rank = 0; rank < n; ++rank) {
    stream.copy(chunks.narrow(0, rank, 1), ranks.narrow(0, 2 * rank, 1));
    stream.copy(chunks.narrow(0, 2 * n - 1 - rank, 1), ranks.narrow(0, 2 * rank + 1, 1));
  }
  return swapped(stream, chunks.reshape({2 * n, B, elements / B})).reshape({B, S, part.size(2)});
}

Tensor own_positions(Stream& stream, const Tensor& whole, const Group& context) {
  const int64_t B = whole.size(0), S = whole.size(1) / context.size(), n = context.size(), rank = context.rank();
  const int64_t elements = S / 2 * whole.size(2);  // of a chunk
  const Tensor chunks = whole.reshape({B, 2 * n, elements}), both = stream.empty({2, B, elements}, whole.dtype());
  kernels::take_part(stream, both.narrow(0, 0, 1).reshape({B, elements}), chunks, rank);
  kernels::take_part(stream, both.narrow(0, 1, 1).reshape({B, elements}), chunks, 2 * n - 1 - rank);
  return swapped(stream, both).reshape({B, S, whole.size(2)});
}

namespace {

using kernels::HeadChannels;
using kernels::PieceCopy;
using kernels::PieceLayout;
using kernels::PieceSize;

// A tensor with the pieces in it.
struct End {
  Tensor tensor;
  PieceLayout layout;
};
using Ends = std::vector<End>;

// Heads of a tensor whose pieces leave, and those of a result that they become.
struct Exchange {
  Tensor from;
  HeadChannels heads;
  size_t result;
  HeadChannels become;
  PieceSize size;
};

// How the pieces of `ranks` ranks lie in a tensor.
using LayoutOf = PieceLayout (*)(const Tensor& x, const HeadChannels& of, int64_t ranks);

class HeadExchange {
 public:
  HeadExchange(Stream& stream, Group& context, const std::vector<Exchange>& all)
      : stream_(stream), context_(context), n_(context.size()), all_(all) {
    for (const Exchange& one : all) elements_ += one.size.elements();
  }

  std::vector<Tensor> run(LayoutOf before, LayoutOf after, const std::vector<Shape>& results) {
    Ends sources, targets;
    for (const Exchange& one : all_) sources.push_back({one.from, before(one.from, one.heads, n_)});
    PeerMemory* const peers = context_.peers();
    Tensor sent = message();
    const Tensor received = message();
    if (peers == nullptr) {
      kernels::copy_pieces(stream_, copies(within(sent), sources), n_);
      context_.all_to_all_equal(stream_, received, sent);
    }
    sent = Tensor();
    std::vector<Tensor> out;
    for (const Shape& shape : results) out.push_back(stream_.empty(shape, all_.front().from.dtype()));
    for (const Exchange& one : all_) targets.push_back({out[one.result], after(out[one.result], one.become, n_)});
    if (peers != nullptr)
      peers->exchange_pieces(stream_, copies(targets, sources));
    else
      kernels::copy_pieces(stream_, copies(targets, within(received)), n_);
    return out;
  }

 private:
  Tensor message() { return stream_.empty({n_ * elements_}, all_.front().from.dtype(), MemoryTag::communication); }
  // All tensors' pieces of a rank side by side in a message.
  Ends within(const Tensor& message) const {
    Ends ends;
    int64_t before = 0;
    for (const Exchange& one : all_) {
      ends.push_back({message, kernels::pieces_of_message(one.size, elements_, before)});
      before += one.size.elements();
    }
    return ends;
  }
  std::vector<PieceCopy> copies(const Ends& to, const Ends& from) const {
    std::vector<PieceCopy> copies;
    for (size_t i = 0; i < all_.size(); ++i)
      copies.push_back({to[i].tensor, from[i].tensor, to[i].layout, from[i].layout, all_[i].size});
    return copies;
  }

  Stream& stream_;
  Group& context_;
  const int64_t n_;
  const std::vector<Exchange>& all_;
  int64_t elements_ = 0;  // of all pieces of a rank
};

void check_heads(const Tensor& part, int64_t heads, const Group& context) {
  const int64_t n = context.size();
  require<ShapeError>(part.contiguous() && part.size(1) % 2 == 0 && (heads % n == 0 || n % heads == 0),
                      "exchange_to_heads over axis ", context.name(), ": [B, S / n, P, w] must be two equal chunks ",
                      "of heads that its ", n, " ranks divide, or that divide them, got ", part.shape());
}

void check_positions(const Tensor& whole, const Group& context) {
  const int64_t n = context.size();
  require<ShapeError>(whole.contiguous() && whole.size(1) % (2 * n) == 0, "exchange_to_positions over axis ",
                      context.name(), ": [B, S, Q, w] must be two equal chunks for each of its ", n, " ranks, got ",
                      whole.shape());
}

void check_channels(const char* op, const Tensor& x, int64_t channels) {
  require<ShapeError>(x.shape().dims() == 3 && x.size(2) == channels, op, ": sections of ", channels, " channels in x ",
                      x.shape());
}

}  // namespace

std::vector<Tensor> exchange_to_heads(Stream& stream, const std::vector<Tensor>& parts, Group& context) {
  const int64_t n = context.size();
  std::vector<Exchange> all;
  std::vector<Shape> shapes;
  for (const Tensor& part : parts) {
    const HeadSection of{part.size(2), part.size(3)};
    check_heads(part, of.heads, context);
    const int64_t B = part.size(0), tokens = part.size(1), Q = of.own_heads(n);
    all.push_back({part, {0, of.heads, of.width}, shapes.size(), {0, Q, of.width}, {B, tokens / 2, Q * of.width}});
    shapes.push_back({B, tokens * n, Q, of.width});
  }
  return HeadExchange(stream, context, all).run(kernels::pieces_by_heads, kernels::pieces_by_positions, shapes);
}

std::vector<Tensor> exchange_to_positions(Stream& stream, const std::vector<Tensor>& wholes, Group& context) {
  const int64_t n = context.size();
  std::vector<Exchange> all;
  std::vector<Shape> shapes;
  for (const Tensor& whole : wholes) {
    check_positions(whole, context);
    const int64_t B = whole.size(0), S = whole.size(1), Q = whole.size(2), w = whole.size(3);
    all.push_back({whole, {0, Q, w}, shapes.size(), {0, n * Q, w}, {B, S / (2 * n), Q * w}});
    shapes.push_back({B, S / n, n * Q, w});
  }
  return HeadExchange(stream, context, all).run(kernels::pieces_by_positions, kernels::pieces_by_heads, shapes);
}

Tensor exchange_to_heads(Stream& stream, const Tensor& part, const HeadSections& sections, Group& context) {
  const int64_t B = part.size(0), tokens = part.size(1), n = context.size();
  std::vector<Exchange> all;
  int64_t first = 0, first_own = 0;
  for (const HeadSection& of : sections) {
    check_heads(part, of.heads, context);
    const int64_t Q = of.own_heads(n);
    all.push_back({part, {first, of.heads, of.width}, 0, {first_own, Q, of.width}, {B, tokens / 2, Q * of.width}});
    first += of.channels(), first_own += Q * of.width;
  }
  check_channels("exchange_to_heads", part, first);
  return HeadExchange(stream, context, all)
      .run(kernels::pieces_by_heads, kernels::pieces_by_positions, {{B, tokens * n, first_own}})
      .front();
}

Tensor exchange_to_positions(Stream& stream, const Tensor& whole, const HeadSections& sections, Group& context) {
  check_positions(whole, context);
  const int64_t B = whole.size(0), S = whole.size(1), n = context.size();
  std::vector<Exchange> all;
  int64_t first = 0;  // of a rank's own heads
  for (const HeadSection& of : sections) {
    const int64_t Q = of.own_heads(n);
    all.push_back({whole, {first, Q, of.width}, 0, {n * first, n * Q, of.width}, {B, S / (2 * n), Q * of.width}});
    first += Q * of.width;
  }
  check_channels("exchange_to_positions", whole, first);
  return HeadExchange(stream, context, all)
      .run(kernels::pieces_by_positions, kernels::pieces_by_heads, {{B, S / n, n * first}})
      .front();
}

}  // namespace witan

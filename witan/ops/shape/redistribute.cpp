#include "witan/ops/shape/redistribute.h"

#include "witan/comm/peer_memory.h"
#include "witan/kernels/common/blocks.h"

namespace witan::ops {
namespace {

using Kind = Placement::Kind;

// Moves one local tensor; forward and backward are the same moves between other placements.
class Mover {
 public:
  Mover(Stream& stream, Group& group) : stream_(stream), group_(group), n_(group.size()) {}

  // `spare`: x has no other user and may be overwritten.
  Tensor move(const Tensor& x, Placement from, Placement to, bool spare) {
    if (from.kind == to.kind && from.dim == to.dim) return x;
    switch (from.kind) {
      case Kind::shard:
        if (to.kind == Kind::shard) return exchange(x, from.dim, to.dim);
        return to.kind == Kind::replicate ? gather(x, from.dim) : place(x, from.dim);
      case Kind::partial:
        return to.kind == Kind::replicate ? all_reduce(x, spare) : reduce_scatter(x, to.dim);
      default:
        return to.kind == Kind::shard ? slice(x, to.dim) : first_rank_keeps(x);
    }
  }

 private:
  // x as [indices before dim, parts of dim, the rest], with `dim` cut into `parts`.
  static Tensor cut(const Tensor& x, int dim, int64_t parts) {
    int64_t before = 1, rest = 1;
    for (int i = 0; i < x.shape().dims(); ++i) (i < dim ? before : rest) *= x.size(i);
    return x.reshape({before, parts, rest / parts});
  }
  // The parts outermost: a row of one tensor for each rank.
  Tensor parts_first(const Tensor& x, int dim) {
    const Tensor blocks = cut(x, dim, n_);
    Tensor y = stream_.empty({n_, blocks.size(0), blocks.size(2)}, x.dtype());
    kernels::swap_blocks(stream_, y, blocks);
    return y;
  }
  // Its inverse: parts [n, ..] as one tensor of `shape`, side by side along dim.
  Tensor side_by_side(const Tensor& parts, int dim, const Shape& shape) {
    Tensor y = stream_.empty(shape, parts.dtype());
    const Tensor blocks = cut(y, dim, n_);
    kernels::swap_blocks(stream_, blocks, parts.reshape({n_, blocks.size(0), blocks.size(2)}));
    return y;
  }

  // Outermost parts lie side by side as they are; only inner dims need to be packed.
  static bool packed(const Tensor& x, int dim) { return cut(x, dim, 1).size(0) == 1; }
  static Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }

  Shape divided(const Tensor& x, int dim) const { return x.shape().with(dim, x.size(dim) / n_); }
  Shape whole(const Tensor& x, int dim) const { return x.shape().with(dim, x.size(dim) * n_); }

  // With peer memory parts need not be packed. Memory for that is taken all the same, so that a plan need not know
  // which ranks will reach each other's.
  Tensor gather(const Tensor& x, int dim) {
    const Shape shape = whole(x, dim);
    const Tensor all = stream_.empty({x.elements() * n_}, x.dtype());
    if (PeerMemory* peers = group_.peers(); peers && !packed(x, dim)) {
      Tensor y = stream_.empty(shape, x.dtype());
      const Tensor blocks = cut(y, dim, n_);
      peers->gather_parts(stream_, blocks, x.reshape({blocks.size(0), blocks.size(2)}));
      return y;
    }
    group_.all_gather(stream_, all, flat(x));
    return packed(x, dim) ? all.reshape(shape) : side_by_side(all, dim, shape);
  }

  Tensor reduce_scatter(const Tensor& x, int dim) {
    Tensor y = stream_.empty(divided(x, dim), x.dtype());
    if (PeerMemory* peers = group_.peers(); peers && !packed(x, dim)) {
      const Tensor blocks = cut(x, dim, n_);
      [[maybe_unused]] const Tensor as_planned = stream_.empty(x.shape(), x.dtype());
      peers->sum_parts(stream_, y.reshape({blocks.size(0), blocks.size(2)}), blocks);
      return y;
    }
    group_.reduce_scatter(stream_, flat(y), flat(packed(x, dim) ? x : parts_first(x, dim)));
    return y;
  }

  Tensor exchange(const Tensor& x, int from, int to) {
    const Tensor parts = packed(x, to) ? x : parts_first(x, to);
    const Tensor received = stream_.empty({x.elements()}, x.dtype());
    group_.all_to_all_equal(stream_, received, flat(parts));
    const Shape shape = divided(x, to).with(from, x.size(from) * n_);
    return packed(x, from) ? received.reshape(shape) : side_by_side(received, from, shape);
  }

  Tensor slice(const Tensor& x, int dim) {
    Tensor y = stream_.empty(divided(x, dim), x.dtype());
    const Tensor blocks = cut(x, dim, n_);
    kernels::take_part(stream_, y.reshape({blocks.size(0), blocks.size(2)}), blocks, group_.rank());
    return y;
  }

  Tensor place(const Tensor& x, int dim) {
    Tensor y = stream_.empty(whole(x, dim), x.dtype());
    const Tensor blocks = cut(y, dim, n_);
    kernels::place_part(stream_, blocks, x.reshape({blocks.size(0), blocks.size(2)}), group_.rank());
    return y;
  }

  Tensor all_reduce(const Tensor& x, bool spare) {
    Tensor y = spare ? x : stream_.empty_like(x);
    if (!spare) kernels::take_part(stream_, y.reshape({1, y.elements()}), x.reshape({1, 1, x.elements()}), 0);
    group_.all_reduce(stream_, y);
    return y;
  }

  Tensor first_rank_keeps(const Tensor& x) { return group_.rank() == 0 ? x : stream_.zeros(x.shape(), x.dtype()); }

  Stream& stream_;
  Group& group_;
  int64_t n_;
};

void check_dim(const Var& x, const Group& group, Placement placement, bool divides) {
  if (placement.kind != Kind::shard) return;
  const int dim = placement.dim;
  require<ShapeError>(dim >= 0 && dim < x.shape().dims(), "redistribute over axis ", group.name(), ": no dim ", dim,
                      " in ", x.shape());
  require<ShapeError>(!divides || x.size(dim) % group.size() == 0, "redistribute over axis ", group.name(), ": dim ",
                      dim, " of ", x.shape(), " is not divisible by its ", group.size(),
                      " ranks; pad it or choose another size");
}

}  // namespace

Var redistribute(Tape& tape, Var x, Group& group, Placement from, Placement to) {
  check_dim(x, group, from, false);
  check_dim(x, group, to, from != to);
  if (from == to || group.size() == 1) return x;
  require<ShapeError>(x.value().contiguous(), "redistribute: x ", x.shape(), " must be contiguous");
  const Tensor y = Mover(tape.stream(), group).move(x.value(), from, to, x.unique());
  return tape.record("redistribute", y, {x}, [x = tape.slot(x), &group, from, to](Backward& b, const Tensor& dy) {
    b.add(x, Mover(b.stream(), group).move(dy, to.of_gradient(), from.of_gradient(), dy.unique()));
  });
}

Var gather_columns(Tape& tape, const Var& x, Group& group, std::span<const int64_t> begins) {
  const auto place = static_cast<size_t>(group.rank());
  require<ShapeError>(static_cast<int64_t>(begins.size()) == group.size() + 1 && x.shape().dims() == 2 &&
                          x.size(1) == begins[place + 1] - begins[place],
                      "gather_columns over axis ", group.name(), ": x ", x.shape(), " is not rank ", group.rank(),
                      "'s columns [T, n]");
  if (group.size() == 1) return x;
  Stream& stream = tape.stream();
  const int64_t T = x.size(0), begin = begins[place], own = x.size(1);
  const Tensor y = stream.empty({T, begins.back()}, x.dtype());
  {
    std::vector<OwnedTensor> pieces;
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      const Shape shape{T, begins[at + 1] - begins[at]};
      pieces.push_back({rank == group.rank() ? x.value() : stream.empty(shape, x.dtype()), rank});
    }
    group.all_gather_uneven(stream, pieces);
    for (const OwnedTensor& piece : pieces) {
      const int64_t first = begins[static_cast<size_t>(piece.owner)];
      kernels::copy_columns(stream, y, piece.tensor, {first, 0, piece.tensor.size(1)});
    }
  }
  return tape.record("gather_columns", y, {x}, [x = tape.slot(x), T, own, begin](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty({T, own}, dy.dtype());
    kernels::copy_columns(b.stream(), dx, dy, {0, begin, own});
    b.add(x, dx);
  });
}

Var exchange_rows(Tape& tape, const Var& rows, Group& group, const Tensor& send_counts, const Tensor& recv_counts,
                  int64_t capacity) {
  require<ShapeError>(rows.shape().dims() == 2, "exchange_rows: rows must be [R, D], got ", rows.shape());
  require<ShapeError>(capacity >= 0, "exchange_rows: capacity must not be negative, got ", capacity);
  Stream& stream = tape.stream();
  const Tensor y = stream.empty(rows.shape().with(0, capacity), rows.dtype());
  group.all_to_all(stream, y, recv_counts, rows.value(), send_counts);
  return tape.record("exchange_rows", y, {rows},
                     [x = tape.slot(rows), shape = rows.shape(), &group, sent = tape.save(send_counts),
                      received = tape.save(recv_counts)](Backward& b, const Tensor& dy) {
                       const Tensor dx = b.stream().empty(shape, dy.dtype());
                       group.all_to_all(b.stream(), dx, b.value(sent), dy, b.value(received));
                       kernels::zero_last_rows(b.stream(), dx, b.value(sent));
                       b.add(x, dx);
                     });
}

Var exchange_parts(Tape& tape, const Var& rows, Group& group) {
  const Tensor y = tape.stream().empty_like(rows.value());
  group.all_to_all_equal(tape.stream(), y, rows.value());
  return tape.record("exchange_parts", y, {rows}, [x = tape.slot(rows), &group](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty_like(dy);
    group.all_to_all_equal(b.stream(), dx, dy);
    b.add(x, dx);
  });
}

}  // namespace witan::ops

#include "witan/comm/group.h"

#include <algorithm>
#include <array>
#include <utility>

#include "witan/base/error.h"
#include "witan/tensor/observer.h"

namespace witan {
namespace {

using Kind = Collective::Kind;

double share_sent(int n) {
  return static_cast<double>(n - 1) / n;
}

void check_tensor(const Stream& stream, Kind kind, const char* name, const Tensor& tensor) {
  require<ShapeError>(tensor.defined(), name_of(kind), ": ", name, " is undefined");
  require<ShapeError>(tensor.contiguous(), name_of(kind), ": ", name, " ", tensor.shape(), " must be contiguous");
  require<ShapeError>(tensor.device() == stream.device(), name_of(kind), ": ", name, " is on ", tensor.device(),
                      " but the stream is on ", stream.device());
}

void check_counts(const Stream& stream, const char* name, const Tensor& counts, int n) {
  check_tensor(stream, Kind::all_to_all, name, counts);
  require<ShapeError>(counts.dtype() == DType::i64 && counts.shape() == Shape{n}, "all_to_all: ", name,
                      " must be int64 [", n, "], got ", counts.dtype(), " ", counts.shape());
}

// Performs a call in a group of one rank.
void perform_alone(Stream& stream, const Collective& call, const std::string& name) {
  int64_t bytes = call.out.defined() ? call.out.bytes() : 0;
  if (call.kind == Kind::all_to_all && stream.is_cuda()) {
    bytes =
        std::min(call.in.bytes(), call.out.bytes());  // the counts are not waited for: what follows them is undefined
  } else if (call.kind == Kind::all_to_all) {
    const int64_t sent = call.send_counts.data<int64_t>()[0], received = call.recv_counts.data<int64_t>()[0];
    require<CommError>(sent == received, "axis ", name, ": all_to_all: the only rank sends ", sent,
                       " rows to itself and expects ", received);
    require<CommError>(sent >= 0 && sent <= std::min(call.in.size(0), call.out.size(0)), "axis ", name,
                       ": all_to_all: ", sent, " rows from ", call.in.shape(), " do not fit into ", call.out.shape());
    bytes = sent * row_bytes(call.in);
  }
  if (bytes > 0 && call.out.raw() != call.in.raw()) stream.queue()->copy(call.out.raw(), call.in.raw(), bytes);
}

}  // namespace

std::string_view name_of(Kind kind) {
  static constexpr std::array<std::string_view, 11> kNames = {"all_reduce",
                                                              "reduce_scatter",
                                                              "all_gather",
                                                              "reduce_scatter_uneven",
                                                              "all_gather_uneven",
                                                              "all_to_all",
                                                              "all_to_all_equal",
                                                              "broadcast",
                                                              "send",
                                                              "recv",
                                                              "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

std::string in_words(const Collective& call) {
  return call.trace_context == nullptr ? "" : in_words(*call.trace_context);
}

int64_t row_bytes(const Tensor& rows) {
  return rows.shape().with(0, 1).elements() * size_of(rows.dtype());
}

std::pair<int64_t, int64_t> part_of(std::span<const int64_t> begins, int rank) {
  const auto r = static_cast<size_t>(rank);
  return {begins[r], begins[r + 1] - begins[r]};
}

Group::Group(int size, int rank, std::string name) : size_(size), rank_(rank), name_(std::move(name)) {
  require<ConfigError>(size >= 1 && rank >= 0 && rank < size, "axis ", name_, ": no rank ", rank, " in a group of ",
                       size);
}

// out and in are rows of one kind, out_parts : in_parts of them.
void Group::check_rows(const Collective& call, int64_t out_parts, int64_t in_parts) const {
  const Tensor &out = call.out, &in = call.in;
  const bool rows = out.shape().dims() >= 1 && in.shape().dims() >= 1 && out.dtype() == in.dtype() &&
                    out.shape().with(0, 1) == in.shape().with(0, 1);
  require<ShapeError>(rows && out.size(0) * in_parts == in.size(0) * out_parts, name_of(call.kind), " over axis ",
                      name_, " of ", size_, " ranks: out ", out.dtype(), " ", out.shape(), " and in ", in.dtype(), " ",
                      in.shape(), " must have one dtype and row shape, and rows as ", out_parts, ":", in_parts);
}

void Group::check_begins(const Collective& call) const {
  const auto& begins = call.begins;
  require<ShapeError>(begins.size() == static_cast<size_t>(size_) + 1 && begins.front() == 0 &&
                          begins.back() == call.in.elements() && std::ranges::is_sorted(begins),
                      name_of(call.kind), " over axis ", name_, ": the parts of ", size_, " ranks must cover the ",
                      call.in.elements(), " elements of ", call.in.shape(), " in order");
}

void Group::carry_out(Stream& stream, Collective call, double bytes) {
  add_sent(std::string(name_of(call.kind)), bytes);
  if (size_ > 1) stream.count_exchange(name_, name_of(call.kind), bytes, size_);
  if (size_ == 1) return stream.is_meta() ? void() : perform_alone(stream, call, name_);
  call.trace_context = &stream.trace_context();
  if (observer_ != nullptr) observer_->begins(*this, call, bytes);
  if (!stream.is_meta()) carry_out_between_ranks(stream, call, bytes);
  if (observer_ != nullptr) observer_->ends();
}

void Group::carry_out_between_ranks(Stream& stream, const Collective& call, double bytes) {
  if (!stream.times_kernels() && observer_ == nullptr) {
    LaunchObserver* const launches = stream.launches();
    if (launches == nullptr) return perform(stream, call);
    launches->begins(stream);
    perform(stream, call);
    return launches->ends(
        stream,
        {.name = name_of(call.kind), .ranks = size_, .bytes_sent = bytes, .axis = name_, .call = describe(call)});
  }
  stream.wait();
  const double start = stream.now();
  perform(stream, call);
  stream.wait();
  if (stream.times_kernels())
    stream.count(name_of(call.kind).data(), {0, 0, stream.now() - start});  // waiting for peers included
}

void Group::all_reduce(Stream& stream, const Tensor& inout, Reduce reduce) {
  check_tensor(stream, Kind::all_reduce, "inout", inout);
  carry_out(stream, {Kind::all_reduce, inout, inout, {}, {}, reduce},
            2 * static_cast<double>(inout.bytes()) * share_sent(size_));
}

void Group::reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in, Reduce reduce) {
  check_tensor(stream, Kind::reduce_scatter, "out", out);
  check_tensor(stream, Kind::reduce_scatter, "in", in);
  const Collective call{Kind::reduce_scatter, out, in, {}, {}, reduce};
  check_rows(call, 1, size_);
  carry_out(stream, call, static_cast<double>(in.bytes()) * share_sent(size_));
}

void Group::all_gather(Stream& stream, const Tensor& out, const Tensor& in) {
  check_tensor(stream, Kind::all_gather, "out", out);
  check_tensor(stream, Kind::all_gather, "in", in);
  const Collective call{Kind::all_gather, out, in, {}, {}};
  check_rows(call, size_, 1);
  carry_out(stream, call, static_cast<double>(in.bytes()) * (size_ - 1));
}

void Group::reduce_scatter_uneven(Stream& stream, const Tensor& inout, std::span<const int64_t> begins, Reduce reduce) {
  check_tensor(stream, Kind::reduce_scatter_uneven, "inout", inout);
  const Collective call{Kind::reduce_scatter_uneven, inout, inout, {}, {}, reduce, 0, begins};
  check_begins(call);
  carry_out(stream, call, static_cast<double>(inout.bytes()) * share_sent(size_));
}

void Group::all_gather_uneven(Stream& stream, std::span<const OwnedTensor> pieces) {
  double bytes = 0;
  for (const auto& [tensor, owner] : pieces) {
    check_tensor(stream, Kind::all_gather_uneven, "a piece", tensor);
    require<ShapeError>(owner >= 0 && owner < size_, "all_gather_uneven over axis ", name_, ": no rank ", owner,
                        " to own a piece among ", size_);
    bytes += static_cast<double>(tensor.bytes());
  }
  carry_out(stream, {Kind::all_gather_uneven, {}, {}, {}, {}, Reduce::sum, 0, {}, pieces}, bytes * share_sent(size_));
}

void Group::all_to_all(Stream& stream, const Tensor& out, const Tensor& recv_counts, const Tensor& in,
                       const Tensor& send_counts) {
  check_tensor(stream, Kind::all_to_all, "out", out);
  check_tensor(stream, Kind::all_to_all, "in", in);
  check_counts(stream, "recv_counts", recv_counts, size_);
  check_counts(stream, "send_counts", send_counts, size_);
  require<ShapeError>(out.shape().dims() >= 1 && in.shape().dims() >= 1 && out.dtype() == in.dtype() &&
                          out.shape().with(0, 1) == in.shape().with(0, 1),
                      "all_to_all over axis ", name_, ": out ", out.dtype(), " ", out.shape(), " and in ", in.dtype(),
                      " ", in.shape(), " must have one dtype and row shape");
  carry_out(stream, {Kind::all_to_all, out, in, recv_counts, send_counts},
            static_cast<double>(std::min(in.bytes(), out.bytes())) * share_sent(size_));
}

void Group::all_to_all_equal(Stream& stream, const Tensor& out, const Tensor& in) {
  check_tensor(stream, Kind::all_to_all_equal, "out", out);
  check_tensor(stream, Kind::all_to_all_equal, "in", in);
  const Collective call{Kind::all_to_all_equal, out, in, {}, {}};
  check_rows(call, 1, 1);
  require<ShapeError>(in.size(0) % size_ == 0, "all_to_all_equal over axis ", name_, ": ", in.size(0),
                      " rows are not divisible by ", size_, " ranks");
  carry_out(stream, call, static_cast<double>(in.bytes()) * share_sent(size_));
}

void Group::broadcast(Stream& stream, const Tensor& inout, int root) {
  check_tensor(stream, Kind::broadcast, "inout", inout);
  require<ShapeError>(root >= 0 && root < size_, "broadcast over axis ", name_, ": no root ", root, " among ", size_);
  carry_out(stream, {Kind::broadcast, inout, inout, {}, {}, Reduce::sum, root},
            static_cast<double>(inout.bytes()) * share_sent(size_));
}

void Group::send(Stream& stream, const Tensor& in, int peer) {
  check_tensor(stream, Kind::send, "in", in);
  require<ShapeError>(peer >= 0 && peer < size_ && peer != rank_, "send over axis ", name_, ": no peer ", peer,
                      " for rank ", rank_, " of ", size_);
  carry_out(stream, {Kind::send, {}, in, {}, {}, Reduce::sum, peer}, static_cast<double>(in.bytes()));
}

void Group::recv(Stream& stream, const Tensor& out, int peer) {
  check_tensor(stream, Kind::recv, "out", out);
  require<ShapeError>(peer >= 0 && peer < size_ && peer != rank_, "recv over axis ", name_, ": no peer ", peer,
                      " for rank ", rank_, " of ", size_);
  carry_out(stream, {Kind::recv, out, {}, {}, {}, Reduce::sum, peer}, 0);
}

void Group::barrier(Stream& stream) {
  carry_out(stream, {Kind::barrier, {}, {}, {}, {}}, 0);
}

}  // namespace witan

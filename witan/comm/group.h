// A communicator: the ranks that communicate along an axis, and their collectives.
//
// Calls are ordered by their stream. Tensors are contiguous, on the stream's device, and must not be accessed by others
// until the call is done there. Every rank of the group makes the same calls in the same order. A group belongs to one
// rank.
//
// Sums run over ranks 0 … n-1 in that order, in float32 for bfloat16: every rank gets the same bits, on every run.
// A group of one rank never waits: its calls are copies, or nothing.
//
// Errors. ShapeError: this rank's own tensors do not fit each other; before any communication. CommError: ranks
// disagree on the operation, a dtype, a shape or a count, or one is lost or late. It names axis, operation, ranks, what
// was expected and what was found, and where in its work a rank was (the trace context of the stream). It is thrown on
// every rank, and the group cannot be used after it. Ranks in messages are those of the world.
//
// Bytes sent, per rank, as the ring and pairwise algorithms send them, from shapes alone (B bytes on each rank, n
// ranks):
//   all_reduce 2B(n-1)/n   reduce_scatter B(n-1)/n (B of in)   all_gather B(n-1) (B of in)   all_to_all_equal B(n-1)/n
//   reduce_scatter_uneven B(n-1)/n, all_gather_uneven B(n-1)/n (B of all pieces): what a rank sends when parts are even
//   broadcast B(n-1)/n: what a rank of a ring sends on average   send B   recv, barrier 0
//   all_to_all B(n-1)/n with B of the smaller of in and out: the rows of a balanced load, as counts live on the device
// On a meta stream calls end after counting; a MetaGroup replaces a group whose peers do not exist.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "witan/tensor/tensor.h"
#include "witan/tensor/trace_context.h"

namespace witan {

class Group;
class PeerMemory;

enum class Reduce : uint8_t { sum, max };  // the maximum of a NaN and anything is NaN

// A tensor of which one rank of a group has the values, and all want them.
struct OwnedTensor {
  Tensor tensor;
  int owner;
};

// One call, as its rank made it: what back ends perform, and compare across ranks.
struct Collective {
  enum class Kind : uint8_t {
    all_reduce,
    reduce_scatter,
    all_gather,
    reduce_scatter_uneven,
    all_gather_uneven,
    all_to_all,
    all_to_all_equal,
    broadcast,
    send,
    recv,
    barrier
  };
  Kind kind;
  Tensor out, in;                               // the same tensor for calls on an inout; one of them for send and recv
  Tensor recv_counts, send_counts;              // of all_to_all
  Reduce reduce = Reduce::sum;                  // of all_reduce and reduce_scatter
  int peer = 0;                                 // of send and recv; the root of broadcast
  std::span<const int64_t> begins = {};         // [n + 1] of reduce_scatter_uneven
  std::span<const OwnedTensor> pieces = {};     // of all_gather_uneven
  const TraceContext* trace_context = nullptr;  // where the rank is; null: unknown
  std::span<const uint64_t> sums = {};          // between threads that check messages (ThreadGroup::with_sums)
};
std::string_view name_of(Collective::Kind kind);
std::string describe(const Collective& call);  // "all_reduce(max) float32 [2, 3]"
int64_t row_bytes(const Tensor& rows);         // of one index of dim 0
std::string in_words(const Collective& call);  // where its rank is: " in step 3, …", or nothing
// The rank's part of an uneven call: (first element, elements).
std::pair<int64_t, int64_t> part_of(std::span<const int64_t> begins, int rank);

// Observes the calls of a rank, on the rank's thread. What a call throws leaves it begun.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void begins(const Group& group, const Collective& call, double bytes_sent) = 0;
  virtual void met() {}  // the peers are there too: what follows moves data
  virtual void ends() {}
};

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return size_; }
  int rank() const { return rank_; }                 // within the group
  const std::string& name() const { return name_; }  // the axis, for errors and accounting

  // Shapes: n = size(). All dtypes; sums of integers wrap.
  void all_reduce(Stream& stream, const Tensor& inout, Reduce reduce = Reduce::sum);  // inout [..], the same everywhere
  // out [R, ..] = the rank's part, in rank order, of the reduction of in [n R, ..]. out may be that part of in.
  void reduce_scatter(Stream& stream, const Tensor& out, const Tensor& in, Reduce reduce = Reduce::sum);
  // out [n R, ..] = the ranks' in [R, ..] in rank order. in may be the rank's part of out.
  void all_gather(Stream& stream, const Tensor& out, const Tensor& in);
  // reduce_scatter in place, with parts of any size: rank r's is elements [begins[r], begins[r + 1]) of the flat inout,
  // which begins [n + 1] covers: 0 = begins[0] <= … <= begins[n]. All ranks give the same. The parts of other ranks are
  // undefined after it.
  void reduce_scatter_uneven(Stream& stream, const Tensor& inout, std::span<const int64_t> begins,
                             Reduce reduce = Reduce::sum);
  // Every piece as its owner has it, on all ranks, in one call. All ranks give the same pieces in the same order.
  void all_gather_uneven(Stream& stream, std::span<const OwnedTensor> pieces);
  // Rows of in [I, ..], grouped by destination rank, go to out [O, ..], grouped by source rank. send_counts and
  // recv_counts are int64 [n] on the device: rows for and from each rank. Both are given (they travel by
  // all_to_all_equal before) and checked against the peers'. Rows of out after the last received one are not written.
  void all_to_all(Stream& stream, const Tensor& out, const Tensor& recv_counts, const Tensor& in,
                  const Tensor& send_counts);
  // all_to_all with n equal parts: in and out [n R, ..].
  void all_to_all_equal(Stream& stream, const Tensor& out, const Tensor& in);
  void broadcast(Stream& stream, const Tensor& inout, int root);
  // A rendezvous: send is done when its peer has received. Two ranks that both send first would wait for each other,
  // which is a CommError; let one of them receive first.
  void send(Stream& stream, const Tensor& in, int peer);
  void recv(Stream& stream, const Tensor& out, int peer);
  void barrier(Stream& stream);

  // This rank has failed and comes to no further call: the waits of all ranks of the world end.
  virtual void abandon() noexcept {}

  // The way to move rows straight between the ranks' memories, where they reach each other's; null elsewhere.
  virtual PeerMemory* peers() { return nullptr; }

  // Adds a checksum to every message that ranks send each other on the host, and throws a CommError naming sender and
  // receiver if a message arrives with other bits. Call it on all ranks with the same value. Between threads a call
  // that returns sums waits for its peers once more. Has no effect in groups whose data does not pass through the host.
  virtual void check_messages() {}

  // Called for each later call between two ranks or more, also on the meta device; null: none.
  void observe(CallObserver* observer) { observer_ = observer; }

  // Bytes this rank sent, by operation, since it began or since reset_sent().
  const std::map<std::string, double>& sent() const { return sent_; }
  void reset_sent() { sent_.clear(); }
  void add_sent(const std::string& operation, double bytes) {
    if (size_ > 1) sent_[operation] += bytes;
  }

 protected:
  Group(int size, int rank, std::string name);
  // For back ends that know it: the peers have come to the call.
  void met() const {
    if (observer_ != nullptr) observer_->met();
  }

 private:
  // Moves the bytes of a call whose tensors fit each other, between two ranks or more, on a stream that computes.
  virtual void perform(Stream& stream, const Collective& call) = 0;

  void check_rows(const Collective& call, int64_t out_parts, int64_t in_parts) const;
  void check_begins(const Collective& call) const;
  void carry_out(Stream& stream, Collective call, double bytes);
  void carry_out_between_ranks(Stream& stream, const Collective& call, double bytes);

  int size_, rank_;
  std::string name_;
  std::map<std::string, double> sent_;
  CallObserver* observer_ = nullptr;
};

}  // namespace witan

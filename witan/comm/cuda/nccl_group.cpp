#include "witan/comm/cuda/nccl_group.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "witan/base/error.h"
#include "witan/comm/cuda/kernels.h"
#include "witan/comm/failure.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/tensor/cuda/library.h"

namespace witan::cuda {

Nccl::Nccl() {
  constexpr int kOldest = 21800;
  ::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  const Library& library = nccl();
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = library.symbol<Function>(name);
  };
  find(get_version, "ncclGetVersion");
  find(get_unique_id, "ncclGetUniqueId");
  find(init_rank, "ncclCommInitRank");
  find(destroy, "ncclCommDestroy");
  find(abort, "ncclCommAbort");
  find(async_error, "ncclCommGetAsyncError");
  find(error_string, "ncclGetErrorString");
  find(last_error, "ncclGetLastError");
  find(group_start, "ncclGroupStart");
  find(group_end, "ncclGroupEnd");
  find(all_reduce, "ncclAllReduce");
  find(reduce_scatter, "ncclReduceScatter");
  find(reduce, "ncclReduce");
  find(all_gather, "ncclAllGather");
  find(broadcast, "ncclBroadcast");
  find(send, "ncclSend");
  find(recv, "ncclRecv");
  path = library.path();
  require<DeviceError>(get_version(&version) == ncclSuccess && version >= kOldest, "NCCL at ", path, " is version ",
                       version, "; ", kOldest, " (2.18) or newer is needed");
}

const Nccl& nccl_calls() {
  static const Nccl loaded;
  return loaded;
}

namespace {

using Kind = Collective::Kind;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::f64:
      return ncclFloat64;
    case DType::i32:
      return ncclInt32;
    default:
      return ncclInt64;
  }
}

ncclRedOp_t op_of(Reduce reduce) {
  return reduce == Reduce::sum ? ncclSum : ncclMax;
}

bool is_captured(Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(native(stream), &status), "asking whether a graph is captured");
  return status != cudaStreamCaptureStatusNone;
}

size_t count_of(const Tensor& tensor) {
  return static_cast<size_t>(tensor.elements());
}

ncclUniqueId shared_id(HostLink& link, const Nccl& nccl) {
  ncclUniqueId id{};
  ncclResult_t made = ncclSuccess;
  if (link.group().rank() == 0) made = nccl.get_unique_id(&id);
  static_assert(sizeof(id) % sizeof(int64_t) == 0);
  std::vector<int64_t> words(sizeof(id) / sizeof(int64_t) + 1);
  words[0] = made;
  std::memcpy(words.data() + 1, &id, sizeof(id));
  words = link.broadcast(words, 0);
  require<CommError>(words[0] == ncclSuccess, "axis ", link.group().name(),
                     ": NCCL cannot create a unique id for the communicator: ",
                     nccl.error_string(static_cast<ncclResult_t>(words[0])));
  std::memcpy(&id, words.data() + 1, sizeof(id));
  return id;
}

}  // namespace

std::unique_ptr<Group> make_group(std::unique_ptr<HostGroup> host, Stream& stream, std::shared_ptr<DeviceWatch> watch,
                                  const GroupOptions& options) {
  if (host->size() == 1) return host;
  auto group = std::make_unique<NcclGroup>(std::move(host), stream, std::move(watch), options);
  if (options.connect_now) group->connect_pairs(stream);
  return group;
}

NcclGroup::NcclGroup(std::unique_ptr<HostGroup> host, Stream& stream, std::shared_ptr<DeviceWatch> watch,
                     const GroupOptions& options)
    : Group(host->size(), host->rank(), host->name()),
      link_(std::move(host), stream),
      watch_(std::move(watch)),
      nccl_(nccl_calls()),
      sums_(options.sums),
      collectives_in_peers_(options.peers == PeerAccess::wanted),
      peers_in_graphs_(options.peers_in_graphs),
      device_(stream.device().index) {
  const OnDevice on(device_);
  const ncclUniqueId id = shared_id(link_, nccl_);  // no rank connects before all are here
  if (options.peers == PeerAccess::host) {
    host_exchange_ = HostExchange::make(link_, stream, *watch_);
    require<DeviceError>(host_exchange_ != nullptr, "axis ", name(),
                         ": its ranks share no memory of their host that all their GPUs reach; set ", kPeersVariable,
                         "=0 for all ranks, so that tokens for experts are exchanged through NCCL");
  } else if (options.peers != PeerAccess::none)
    peers_ = PeerExchange::make(*this, link_, stream, *watch_);
  link_.all_gather({0});  // a rank that failed until here would be waited for by NCCL
  check(nccl_.init_rank(&communicator_, size(), id, rank()), "connecting");
  watch_->add(*this);
}

NcclGroup::~NcclGroup() {
  const bool settled = watch_->settled();
  watch_->remove(*this);
  if (settled && communicator_ != nullptr) nccl_.destroy(communicator_);
}

std::string NcclGroup::complaint(double waited_seconds) {
  std::string reason = peers_ ? peers_->complaint() : host_exchange_ ? host_exchange_->complaint() : std::string();
  if (!reason.empty()) return reason;
  if (waited_seconds > kCompareAfterSeconds)
    if (std::string differs = link_.group().compare_calls(); !differs.empty()) return differs;
  ncclResult_t error = ncclSuccess;
  if (communicator_ == nullptr || nccl_.async_error(communicator_, &error) != ncclSuccess) return {};
  if (error == ncclSuccess || error == ncclInProgress) return {};
  return cat("axis ", name(), ": NCCL: ", nccl_.error_string(error), ": ", nccl_.last_error(communicator_));
}

void NcclGroup::stop() noexcept {
  if (peers_) peers_->stop();
  if (host_exchange_) host_exchange_->stop();
}

void NcclGroup::abort() noexcept {
  if (communicator_ != nullptr) nccl_.abort(communicator_);
  communicator_ = nullptr;
}

void NcclGroup::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw CommError(
      cat("axis ", name(), ": NCCL: ", what, ": ", nccl_.error_string(result), ": ", nccl_.last_error(communicator_)));
}

template <class Body>
void NcclGroup::together(const char* what, const Body& body) {
  check(nccl_.group_start(), what);
  body();
  check(nccl_.group_end(), what);
}

void NcclGroup::send(const std::byte* from, int64_t bytes, int peer, cudaStream_t stream) {
  if (bytes == 0) return;
  check(nccl_.send(from, static_cast<size_t>(bytes), ncclInt8, peer, communicator_, stream), "send");
}
void NcclGroup::recv(std::byte* to, int64_t bytes, int peer, cudaStream_t stream) {
  if (bytes == 0) return;
  check(nccl_.recv(to, static_cast<size_t>(bytes), ncclInt8, peer, communicator_, stream), "recv");
}

void NcclGroup::connect_pairs(Stream& stream) {
  constexpr int64_t kWord = sizeof(int64_t);
  std::byte* words = stream.scratch(2 * size() * kWord);
  stream.queue()->zero(words, 2 * size() * kWord);
  together("connecting", [&] {
    for (int peer = 0; peer < size(); ++peer) {
      send(words + peer * kWord, kWord, peer, native(stream));
      recv(words + (size() + peer) * kWord, kWord, peer, native(stream));
    }
  });
  stream.wait();
}

void NcclGroup::perform(Stream& stream, const Collective& call) {
  require<CommError>(stream.device().index == device_, "axis ", name(), ": its communicator is on GPU ", device_,
                     ", the stream on ", stream.device());
  watch_->poll(0);
  require<AbortedError>(communicator_ != nullptr, "axis ", name(), ": stopped, as another rank failed");
  if (call.kind == Kind::all_to_all && !host_exchange_) return exchange(stream, call);
  // Ranks come together for a call that is captured, which begins again and again with nobody asking. For any other
  // they need not wait for each other's hosts: NCCL makes their devices wait.
  const bool captured = is_captured(stream);
  const Collective seen = call.kind == Kind::all_to_all ? without_counts(call) : call;
  captured ? link_.group().agree(seen) : link_.group().agree_later(seen);
  met();
  if (host_exchange_ && HostExchange::takes(call)) return host_exchange_->perform(stream, call);
  if (goes_to_peers(call, captured)) return peers_->perform(stream, call);
  const cudaStream_t native = cuda::native(stream);
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
    case Kind::reduce_scatter_uneven:
      return reduce(stream, call);
    case Kind::all_gather:
      return check(nccl_.all_gather(call.in.raw(), call.out.raw(), static_cast<size_t>(call.in.bytes()), ncclInt8,
                                    communicator_, native),
                   "all_gather");
    case Kind::all_gather_uneven:
      return all_gather_uneven(stream, call);
    case Kind::all_to_all_equal:
      return exchange_equal(stream, call);
    case Kind::broadcast:
      return check(nccl_.broadcast(call.in.raw(), call.out.raw(), static_cast<size_t>(call.in.bytes()), ncclInt8,
                                   call.peer, communicator_, native),
                   "broadcast");
    case Kind::send:
      return send(call.in.raw(), call.in.bytes(), call.peer, native);
    case Kind::recv:
      return recv(call.out.raw(), call.out.bytes(), call.peer, native);
    default:
      return barrier(stream);
  }
}

Collective NcclGroup::without_counts(Collective call) {
  const Tensor none = link_.integers(std::vector<int64_t>(static_cast<size_t>(size())));
  call.send_counts = call.recv_counts = none;
  return call;
}

bool NcclGroup::goes_to_peers(const Collective& call, bool captured) const {
  return peers_ && collectives_in_peers_ && (captured || !peers_in_graphs_) && PeerExchange::takes(call);
}

void NcclGroup::reduce(Stream& stream, const Collective& call) {
  const DType dtype = call.in.dtype();
  // NCCL rounds sums of 16 bits at every rank, and its maximum prefers anything to a NaN.
  const bool as_nccl = !is_floating(dtype) || (call.reduce == Reduce::sum && size_of(dtype) > 2 && sums_ == Sums::fast);
  if (!as_nccl) return call.kind == Kind::all_reduce ? all_reduce_in_tree(stream, call) : scatter_in_tree(stream, call);
  if (call.kind == Kind::reduce_scatter_uneven)  // a reduction to each rank, all at once
    return together("reduce_scatter_uneven", [&] {
      for (int peer = 0; peer < size(); ++peer) {
        const auto [begin, count] = part_of(call.begins, peer);
        std::byte* at = call.in.raw() + begin * size_of(dtype);
        if (count > 0)
          check(nccl_.reduce(at, at, static_cast<size_t>(count), type_of(dtype), op_of(call.reduce), peer,
                             communicator_, native(stream)),
                "reduce");
      }
    });
  if (call.kind == Kind::reduce_scatter)
    return check(nccl_.reduce_scatter(call.in.raw(), call.out.raw(), count_of(call.out), type_of(dtype),
                                      op_of(call.reduce), communicator_, native(stream)),
                 "reduce_scatter");
  check(nccl_.all_reduce(call.in.raw(), call.out.raw(), count_of(call.in), type_of(dtype), op_of(call.reduce),
                         communicator_, native(stream)),
        "all_reduce");
}

int64_t NcclGroup::slice_of(int64_t elements, DType dtype) const {
  constexpr int64_t kPieceBytes = int64_t{32} << 20, kLine = 64;  // elements: slices stay aligned
  const int64_t most = kPieceBytes / size() / size_of(dtype) / kLine * kLine;
  const int64_t even = ((elements + size() - 1) / size() + kLine - 1) / kLine * kLine;
  return std::min(most, even);
}

// Each rank sums a slice of a piece, in the tree, and sends it to all.
void NcclGroup::all_reduce_in_tree(Stream& stream, const Collective& call) {
  const DType dtype = call.in.dtype();
  const int64_t total = call.in.elements(), item = size_of(dtype);
  const cudaStream_t native = cuda::native(stream);
  std::byte* values = call.out.raw();
  for (int64_t begin = 0, slice = 0; begin < total; begin += slice * size()) {
    slice = slice_of(total - begin, dtype);
    std::byte* parts = stream.scratch(slice * size() * item);  // [n, slice]
    const auto from = [&](int r) { return std::min(begin + r * slice, total); };
    const auto bytes = [&](int r) { return (from(r + 1) - from(r)) * item; };
    together("all_reduce", [&] {
      for (int peer = 0; peer < size(); ++peer) {
        send(values + from(peer) * item, bytes(peer), peer, native);
        recv(parts + peer * slice * item, bytes(rank()), peer, native);
      }
    });
    std::byte* own = values + from(rank()) * item;
    reduce_parts(stream, own, parts, slice, size(), bytes(rank()) / item, dtype, call.reduce);
    together("all_reduce", [&] {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        send(own, bytes(rank()), peer, native);
        recv(values + from(peer) * item, bytes(peer), peer, native);
      }
    });
  }
}

// A slice of every rank's part at a time.
void NcclGroup::scatter_in_tree(Stream& stream, const Collective& call) {
  const DType dtype = call.in.dtype();
  const int64_t item = size_of(dtype);
  const bool uneven = call.kind == Kind::reduce_scatter_uneven;
  const auto part = [&](int r) {
    const int64_t even = call.out.elements();
    return uneven ? part_of(call.begins, r) : std::pair{r * even, even};
  };
  int64_t most = 0;  // of a part
  for (int peer = 0; peer < size(); ++peer) most = std::max(most, part(peer).second);
  std::byte* own = uneven ? call.out.raw() + part(rank()).first * item : call.out.raw();
  const cudaStream_t native = cuda::native(stream);
  for (int64_t begin = 0, slice = 0; begin < most; begin += slice) {
    slice = std::min(slice_of((most - begin) * size(), dtype), most - begin);
    std::byte* parts = stream.scratch((slice + 64) * size() * item);
    const int64_t stride = (slice + 63) / 64 * 64;  // elements
    const auto bytes = [&](int r) { return std::clamp<int64_t>(part(r).second - begin, 0, slice) * item; };
    together(name_of(call.kind).data(), [&] {
      for (int peer = 0; peer < size(); ++peer) {
        send(call.in.raw() + (part(peer).first + begin) * item, bytes(peer), peer, native);
        recv(parts + peer * stride * item, bytes(rank()), peer, native);
      }
    });
    // out may be this rank's part of in, which has been sent, to itself too.
    if (bytes(rank()) > 0)
      reduce_parts(stream, own + begin * item, parts, stride, size(), bytes(rank()) / item, dtype, call.reduce);
  }
}

// A broadcast of each piece, all at once.
void NcclGroup::all_gather_uneven(Stream& stream, const Collective& call) {
  together("all_gather_uneven", [&] {
    for (const auto& [tensor, owner] : call.pieces)
      if (tensor.bytes() > 0)
        check(nccl_.broadcast(tensor.raw(), tensor.raw(), static_cast<size_t>(tensor.bytes()), ncclInt8, owner,
                              communicator_, native(stream)),
              "broadcast");
  });
}

void NcclGroup::exchange_equal(Stream& stream, const Collective& call) {
  const int64_t bytes = call.in.bytes() / size();
  together("all_to_all_equal", [&] {
    for (int peer = 0; peer < size(); ++peer) {
      send(call.in.raw() + peer * bytes, bytes, peer, native(stream));
      recv(call.out.raw() + peer * bytes, bytes, peer, native(stream));
    }
  });
}

void NcclGroup::exchange(Stream& stream, const Collective& call) {
  require<DeviceError>(!is_captured(stream), "axis ", name(),
                       ": all_to_all through NCCL reads its counts on the host and cannot be part of a graph; ranks "
                       "that reach each other's memory exchange rows without it");
  std::vector<int64_t> sends(static_cast<size_t>(size())), receives(sends);
  // Goes through the main stream, since side streams must have no pinned memory (tensor/cuda/queue).
  Stream& main = link_.main();
  if (&main != &stream) main.follow(stream);
  main.read(sends.data(), call.send_counts);
  main.read(receives.data(), call.recv_counts);
  Collective seen = call;
  seen.send_counts = link_.integers(sends);
  seen.recv_counts = link_.integers(receives);
  link_.group().agree(seen);  // at once: rows that do not fit must not be sent
  const int64_t bytes_per_row = row_bytes(call.in);
  together("all_to_all", [&] {
    const std::byte* from = call.in.raw();
    std::byte* to = call.out.raw();
    for (int peer = 0; peer < size(); ++peer) {
      const int64_t sent = sends[static_cast<size_t>(peer)] * bytes_per_row,
                    received = receives[static_cast<size_t>(peer)] * bytes_per_row;
      send(from, sent, peer, native(stream));
      recv(to, received, peer, native(stream));
      from += sent;
      to += received;
    }
  });
}

// Work of this stream after it begins when all ranks' work before it is done.
void NcclGroup::barrier(Stream& stream) {
  std::byte* word = stream.scratch(sizeof(int32_t));
  stream.queue()->zero(word, sizeof(int32_t));
  check(nccl_.all_reduce(word, word, 1, ncclInt32, ncclSum, communicator_, native(stream)), "barrier");
}

}  // namespace witan::cuda

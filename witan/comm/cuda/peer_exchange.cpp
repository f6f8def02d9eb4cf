#include "witan/comm/cuda/peer_exchange.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "witan/base/error.h"

namespace witan::cuda {
namespace {

std::vector<HostIdentity> gather_identities(HostLink& link, const HostIdentity& own) {
  const std::vector<int64_t> words = link.all_gather({own.host, own.process, own.gpu});
  std::vector<HostIdentity> identities;
  for (size_t at = 0; at < words.size(); at += 3) identities.push_back({words[at], words[at + 1], words[at + 2]});
  return identities;
}

bool all_reach(HostLink& link, const std::vector<HostIdentity>& identities, int device, const DeviceWatch& watch) {
  const std::vector<int64_t> devices = link.all_gather({device});
  const HostIdentity& own = identities[static_cast<size_t>(link.group().rank())];
  int64_t mine = link.group().size() <= kMostPeers && watch.ranks_can_part();
  for (size_t rank = 0; rank < identities.size(); ++rank)
    if (mine != 0) mine = may_reach(device, own, identities[rank], static_cast<int>(devices[rank]));
  return std::ranges::all_of(link.all_gather({mine}), [](int64_t answer) { return answer != 0; });
}

void enable_access(int device, int there) {
  if (device == there) return;
  const cudaError_t status = cudaDeviceEnablePeerAccess(there, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check(status, "opening a GPU's memory to another");
}

// The most pieces of one call, whose addresses fit into the link's messages.
constexpr size_t kMostPieces = 4096;

int64_t number_of(const std::byte* address) {
  return reinterpret_cast<int64_t>(address);
}

}  // namespace

HostIdentity identity_of(int device) {
  int domain = 0, bus = 0, slot = 0;
  check(cudaDeviceGetAttribute(&domain, cudaDevAttrPciDomainId, device), "asking where a GPU is");
  check(cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device), "asking where a GPU is");
  check(cudaDeviceGetAttribute(&slot, cudaDevAttrPciDeviceId, device), "asking where a GPU is");
  HostIdentity identity = identity_of_process();
  identity.gpu = pci_address(domain, bus, slot);
  return identity;
}

bool may_reach(int here, const HostIdentity& own, const HostIdentity& there, int device_there) {
  switch (path_between(own, there)) {
    case PeerPath::none:
      return false;
    case PeerPath::address:
      return can_access_peer(here, device_there);
    default:
      break;
  }
  for (int device = 0; device < devices(); ++device)
    if (identity_of(device).gpu == there.gpu) return can_access_peer(here, device);
  return true;
}

std::unique_ptr<PeerExchange> PeerExchange::make(Group& group, HostLink& link, Stream& stream, DeviceWatch& watch) {
  const int device = stream.device().index;
  const std::vector<HostIdentity> identities = gather_identities(link, identity_of(device));
  if (!all_reach(link, identities, device, watch)) return nullptr;
  std::unique_ptr<PeerExchange> made(new PeerExchange(group, link, stream, watch));
  const int64_t mine = made->connect(identities);
  const std::vector<int64_t> answers = link.all_gather({mine});
  return std::ranges::count(answers, 0) == 0 ? std::move(made) : nullptr;
}

PeerExchange::PeerExchange(Group& group, HostLink& link, Stream& stream, DeviceWatch& watch)
    : PeerMemory(group), link_(link), device_(stream.device().index), words_(watch, device_), order_(link.main()) {
  constexpr int64_t kBytes = (sizeof(Window) + kSharedBlock - 1) / kSharedBlock * kSharedBlock;
  window_ = allocate(device_, kBytes);
  watch.keep(window_);
  stream.queue()->zero(window_, sizeof(Window));
  stream.wait();
}

PeerExchange::~PeerExchange() {
  // Work that still runs would access memory that is gone. Then the memory stays open until the process ends.
  const bool done = order_.done_within(kPartingSeconds);
  for (auto& one : opened_)
    if (!done) [[maybe_unused]]
      const MappedMemory* left_open = one.release();
}

PeerExchange::PeerInfo PeerExchange::own_info(bool to_processes) {
  PeerInfo own{};
  own.window = number_of(window_);
  own.device = device_;
  own.proof = random_number();
  copy_in(device_, reinterpret_cast<std::byte*>(&reinterpret_cast<Window*>(window_)->proof), &own.proof,
          sizeof own.proof);
  const Arena& arena = link_.main().arena();
  own.arena = number_of(arena.address(0));
  own.arena_bytes = arena.reserved();
  if (!to_processes) return own;
  try {
    own.window_handle = export_memory(device_, window_);
    own.arena_handle = export_memory(device_, arena.address(0));
    own.exported = 1;
  } catch (const DeviceError&) {
    // The others learn that there are no handles.
  }
  return own;
}

// Throws DeviceError if this GPU cannot access it, or the handle opens other memory.
void PeerExchange::open(int rank, const PeerInfo& theirs) {
  require<DeviceError>(theirs.exported != 0, "another process did not export its memory");
  opened_.push_back(std::make_unique<MappedMemory>(device_, theirs.window_handle));
  auto* window = reinterpret_cast<Window*>(opened_.back()->base());
  int64_t proof = 0;
  copy_out(device_, &proof, reinterpret_cast<const std::byte*>(&window->proof), sizeof proof);
  require<DeviceError>(proof == theirs.proof, "the handle of another process opens other memory");
  opened_.push_back(std::make_unique<MappedMemory>(device_, theirs.arena_handle));
  shift_[rank] = number_of(opened_.back()->base()) - theirs.arena;
  peers_.windows[rank] = window;
}

bool PeerExchange::connect(const std::vector<HostIdentity>& identities) {
  const OnDevice on(device_);
  const HostIdentity& here = identities[static_cast<size_t>(group().rank())];
  const auto is_thread = [&](size_t rank) { return path_between(here, identities[rank]) == PeerPath::address; };
  exports_ = !link_.group().one_process();
  const PeerInfo own = own_info(exports_);
  constexpr size_t kWords = sizeof(PeerInfo) / sizeof(int64_t);
  static_assert(sizeof(PeerInfo) % sizeof(int64_t) == 0 && std::is_trivially_copyable_v<PeerInfo>);
  std::vector<int64_t> words(kWords);
  std::memcpy(words.data(), &own, sizeof own);
  words = link_.all_gather(words);

  bool reached = true;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    PeerInfo theirs{};
    std::memcpy(&theirs, words.data() + rank * kWords, sizeof theirs);
    if (is_thread(rank)) {
      peers_.windows[rank] = reinterpret_cast<Window*>(theirs.window);
      enable_access(device_, static_cast<int>(theirs.device));
      continue;
    }
    try {
      open(static_cast<int>(rank), theirs);
    } catch (const DeviceError&) {
      reached = false;  // all ranks do without then
    }
  }
  peers_.rank = group().rank();
  peers_.size = group().size();
  peers_.waits = words_.waits(&reinterpret_cast<Window*>(window_)->failed);
  return reached;
}

std::string PeerExchange::complaint() const {
  const auto said = words_.trouble();
  if (!said) return {};
  const auto [trouble, waited_for] = *said;
  const int peer = link_.group().world_rank(waited_for);
  if (trouble == Trouble::capacity)
    return cat("axis ", group().name(), ": more rows arrive at rank ", peer,
               " than its pool can hold: all expert-parallel ranks must have the same number of tokens");
  const std::string_view did = trouble == Trouble::counts   ? "did not send its counts"
                               : trouble == Trouble::coming ? "did not reach an exchange through peer memory"
                                                            : "did not finish an exchange through peer memory";
  return cat("axis ", group().name(), ": rank ", peer, " ", did, " within ", words_.deadline_seconds(),
             " s; the GPU of rank ", link_.group().world_rank(group().rank()), " waited");
}

std::vector<int64_t> PeerExchange::agree(Call call, const std::vector<int64_t>& same,
                                         const std::vector<int64_t>& details) {
  static constexpr std::string_view kNames[] = {"place_rows",  "push_rows", "pull_rows",
                                                "a reduction", "a gather",  "an exchange of pieces"};
  std::vector<int64_t> mine = {static_cast<int64_t>(call), static_cast<int64_t>(same.size())};
  mine.insert(mine.end(), same.begin(), same.end());
  constexpr size_t kFields = 6;  // one length, whatever the call: ranks may be in different ones
  mine.resize(kFields);
  mine.insert(mine.end(), details.begin(), details.end());
  constexpr size_t kDetails = kernels::kMostPieceCopies, width = kFields + kDetails;
  mine.resize(width);
  const std::vector<int64_t> all = link_.all_gather(mine);

  std::vector<int64_t> out;
  for (int rank = 0; rank < group().size(); ++rank) {
    const auto theirs = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(rank) * width);
    const auto describe = [&](auto of) {
      std::string text(kNames[static_cast<size_t>(of[0])]);
      for (int64_t i = 0; i < of[1]; ++i) text += cat(i == 0 ? " of [" : ", ", of[2 + i], i + 1 == of[1] ? "]" : "");
      return text;
    };
    require<CommError>(std::equal(theirs, theirs + kFields, all.begin()), "axis ", group().name(), ": rank ",
                       link_.group().world_rank(rank), " calls ", describe(theirs), ", expected as on rank ",
                       link_.group().world_rank(0), ": ", describe(all.begin()));
    out.insert(out.end(), theirs + kFields, theirs + static_cast<ptrdiff_t>(kFields + details.size()));
  }
  return out;
}

// Other processes have opened the arena alone.
int64_t PeerExchange::address(const Tensor& tensor) const {
  if (!tensor.defined()) return 0;
  const Arena& arena = link_.main().arena();
  const int64_t at = number_of(tensor.raw()), begin = number_of(arena.address(0));
  require<DeviceError>(!exports_ || (at >= begin && at + tensor.bytes() <= begin + arena.reserved()), "axis ",
                       group().name(), ": a receive buffer that other processes access must lie in its rank's arena");
  return at;
}

std::byte* PeerExchange::found(int rank, int64_t address) const {
  return address == 0 ? nullptr : reinterpret_cast<std::byte*>(address + shift_[rank]);
}

RankBuffers PeerExchange::rank_buffers(Call call, const Rows& own) {
  const auto all = agree(call,
                         {own.rows.defined() ? own.rows.size(0) : own.weights.size(0),
                          own.rows.defined() ? row_bytes(own.rows) : 0, own.weights.defined() ? 1 : 0},
                         {address(own.rows), address(own.weights)});
  RankBuffers buffers{};
  for (int rank = 0; rank < group().size(); ++rank) {
    const size_t at = static_cast<size_t>(rank) * 2;
    buffers.rows[rank] = found(rank, all[at]);
    buffers.weights[rank] = found(rank, all[at + 1]);
  }
  return buffers;
}

void PeerExchange::place(Stream& stream, const RowGroups& groups, const Tensor& remote, const Tensor& counts,
                         int64_t capacity) {
  agree(Call::place, {counts.elements(), capacity}, {});
  order_.begin(stream);
  launch_place(stream, peers_, groups, remote, counts, capacity);
  order_.end(stream);
}

void PeerExchange::push(Stream& stream, const Rows& to, const Rows& from, const Tensor& source, int64_t topk,
                        const Tensor& remote) {
  order_.begin(stream);
  launch_push(stream, peers_, rank_buffers(Call::push, to), from, source, topk, remote, most_blocks(stream));
  order_.end(stream);
}

void PeerExchange::pull(Stream& stream, const Rows& to, const Rows& from, const Tensor& slot, const Tensor& remote) {
  order_.begin(stream);
  launch_pull(stream, peers_, to, rank_buffers(Call::pull, from), slot, remote, most_blocks(stream));
  order_.end(stream);
}

PeerArrays PeerExchange::arrays(Call call, const Tensor& own) {
  const auto all = agree(call, {own.elements(), size_of(own.dtype())}, {address(own), 0});
  PeerArrays arrays{.of = {}, .block = own.bytes(), .stride = own.bytes()};
  for (int rank = 0; rank < group().size(); ++rank) arrays.of[rank] = found(rank, all[static_cast<size_t>(rank) * 2]);
  return arrays;
}

void PeerExchange::reduce(Stream& stream, std::byte* out, PeerArrays in, int64_t begin, int64_t count, DType dtype,
                          Reduce how) {
  for (int rank = 0; rank < group().size(); ++rank) in.of[rank] += begin * size_of(dtype);
  order_.begin(stream);
  launch_peer_reduce(stream, peers_, out, in, count, dtype, how, most_blocks(stream));
  order_.end(stream);
}

void PeerExchange::publish(Stream& stream, PeerArrays to, const std::byte* from, int64_t begin, int64_t bytes) {
  for (int rank = 0; rank < group().size(); ++rank) to.of[rank] += begin;
  if (stream.is_side()) return copy_to_all(stream, to, from, bytes);
  order_.begin(stream);
  launch_peer_publish(stream, peers_, to, from, bytes, most_blocks(stream));
  order_.end(stream);
}

namespace {

// Between GPUs, by their copy engines: `bytes` in blocks that are `stride` bytes apart there and contiguous here.
void copy_blocks(cudaStream_t stream, std::byte* to, const std::byte* from, int64_t bytes, int64_t block,
                 int64_t stride) {
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const cudaError_t status = block >= bytes ? cudaMemcpyAsync(to, from, size(bytes), cudaMemcpyDefault, stream)
                                            : cudaMemcpy2DAsync(to, size(stride), from, size(block), size(block),
                                                                size(bytes / block), cudaMemcpyDefault, stream);
  check(status, "copying to another GPU");
}

}  // namespace

// Side streams publish by copy engines, as copy() does: tokens that tensor-parallel ranks gather during products, and
// gradients that data-parallel ranks have summed. After a failure the data is still written, but never read, since the
// step ends on every rank.
void PeerExchange::copy_to_all(Stream& stream, const PeerArrays& to, const std::byte* from, int64_t bytes) {
  order_.begin(stream);
  launch_barrier(stream, peers_);
  for (int p = 1; p <= group().size(); ++p) {
    std::byte* const there = to.of[(group().rank() + p) % group().size()];
    if (there != from) copy_blocks(native(stream), there, from, bytes, to.block, to.stride);
  }
  launch_barrier(stream, peers_);
  order_.end(stream);
}

bool PeerExchange::takes(const Collective& call) {
  using Kind = Collective::Kind;
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
    case Kind::reduce_scatter_uneven:
    case Kind::all_gather:
      return call.out.elements() > 0 && call.in.elements() > 0;
    case Kind::all_gather_uneven:
      return call.pieces.size() <= kMostPieces &&
             std::ranges::any_of(call.pieces, [](const OwnedTensor& piece) { return piece.tensor.bytes() > 0; });
    default:
      return false;
  }
}

void PeerExchange::perform(Stream& stream, const Collective& call) {
  using Kind = Collective::Kind;
  if (call.kind == Kind::all_gather_uneven) return copy(stream, call.pieces);
  const DType dtype = call.in.dtype();
  const int64_t item = size_of(dtype), me = group().rank();
  if (call.kind == Kind::all_gather)
    return publish(stream, arrays(Call::gather, call.out), call.in.raw(), me * call.in.bytes(), call.in.bytes());
  const PeerArrays in = arrays(Call::reduce, call.in);
  if (call.kind == Kind::reduce_scatter)
    return reduce(stream, call.out.raw(), in, me * call.out.elements(), call.out.elements(), dtype, call.reduce);
  // Reduces in place, since no other rank reads this rank's slice of its own array.
  constexpr int64_t kLine = 64;  // elements: slices stay aligned
  const int64_t total = call.in.elements(),
                slice = ((total + group().size() - 1) / group().size() + kLine - 1) / kLine * kLine;
  const auto [begin, count] =
      call.kind == Kind::reduce_scatter_uneven
          ? part_of(call.begins, static_cast<int>(me))
          : std::pair{std::min(me * slice, total), std::min(slice, std::max(total - me * slice, int64_t{0}))};
  std::byte* const own = call.out.raw() + begin * item;
  reduce(stream, own, in, begin, count, dtype, call.reduce);
  if (call.kind == Kind::all_reduce) publish(stream, in, own, begin * item, count * item);
}

// Uses the GPUs' copy engines, since parameters are gathered during products, which need the multiprocessors. Ranks
// begin with different peers, so that all links are busy. Unlike the kernels of other calls, copies also run after the
// world has failed: the parameters that they write belong to a step that no rank finishes.
void PeerExchange::copy(Stream& stream, std::span<const OwnedTensor> pieces) {
  std::vector<int64_t> own;
  for (const OwnedTensor& piece : pieces) own.push_back(piece.tensor.bytes() > 0 ? address(piece.tensor) : 0);
  const std::vector<int64_t> all = link_.all_gather(own);
  const int ranks = group().size(), me = group().rank();
  order_.begin(stream);
  launch_barrier(stream, peers_);  // what peers' work before this call reads or writes is theirs until now
  for (int p = 1; p < ranks; ++p) {
    const int peer = (me + p) % ranks;
    const auto theirs = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(peer) * pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i)
      if (const auto& [tensor, owner] = pieces[i]; owner == me && tensor.bytes() > 0)
        copy_blocks(native(stream), found(peer, theirs[static_cast<ptrdiff_t>(i)]), tensor.raw(), tensor.bytes(),
                    tensor.bytes(), 0);
  }
  launch_barrier(stream, peers_);
  order_.end(stream);
}

void PeerExchange::gather(Stream& stream, const Tensor& whole, const Tensor& part) {
  PeerArrays to = arrays(Call::gather, whole);
  const int64_t block = whole.size(2) * size_of(whole.dtype());
  to.block = block;
  to.stride = block * whole.size(1);
  publish(stream, to, part.raw(), group().rank() * block, part.bytes());
}

void PeerExchange::sum(Stream& stream, const Tensor& part, const Tensor& whole) {
  PeerArrays in = arrays(Call::reduce, whole);
  in.block = whole.size(2) * size_of(whole.dtype());
  in.stride = in.block * whole.size(1);
  reduce(stream, part.raw(), in, group().rank() * whole.size(2), part.elements(), part.dtype(), Reduce::sum);
}

void PeerExchange::exchange(Stream& stream, const std::vector<kernels::PieceCopy>& copies) {
  std::vector<int64_t> same = {static_cast<int64_t>(copies.size()), 0, size_of(copies.front().from.dtype())}, details;
  for (const kernels::PieceCopy& copy : copies) {
    same[1] += copy.size.elements();
    details.push_back(address(copy.to));
  }
  const auto all = agree(Call::exchange, same, details);
  PeerPieces to{};
  for (size_t copy = 0; copy < copies.size(); ++copy)
    for (int rank = 0; rank < group().size(); ++rank)
      to.of[copy][rank] = found(rank, all[static_cast<size_t>(rank) * copies.size() + copy]);
  order_.begin(stream);
  launch_peer_pieces(stream, peers_, to, copies, most_blocks(stream));
  order_.end(stream);
}

}  // namespace witan::cuda

// Messages by UCX: through shared memory within a host, by RDMA or TCP between hosts, as UCX finds best.
//
// A message is a tagged one; its tag is the sender and, of control messages, their kind and channel, of data, the tag
// that they were given. Data are received where take() says, which may be before or after they come. Control messages
// come unasked: all that are there are fetched in the order in which they came.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <list>
#include <map>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/processes/inbox.h"
#include "witan/comm/processes/launch.h"
#include "witan/comm/processes/message_engine.h"
#include "witan/comm/processes/socket.h"
#include "witan/comm/ucx/ucx.h"

namespace witan {
namespace {

// | control 1 | sender 20 | kind 2 | channel 40 |   or   | 0 | sender 20 | tag of data 42 |
constexpr ucp_tag_t kControlTag = ucp_tag_t{1} << 62, kWholeTag = ~ucp_tag_t{0};
constexpr int kSenderShift = 42, kKindShift = 40;
static_assert(MessageEngine::kMostRanks == 1 << 20 && MessageEngine::kMostKinds == 1 << 2 &&
              MessageEngine::kMostTag >> kSenderShift == 0);

constexpr double kDropSeconds = 0.2;  // for what is on its way to end by itself

ucp_tag_t tag_of_control(int sender, uint64_t channel, uint32_t kind) {
  return kControlTag | static_cast<ucp_tag_t>(sender) << kSenderShift | static_cast<ucp_tag_t>(kind) << kKindShift |
         channel;
}

ucp_tag_t tag_of_data(int sender, uint64_t tag) {
  return static_cast<ucp_tag_t>(sender) << kSenderShift | tag;
}

void check_status(ucs_status_t status, const char* what) {
  require<CommError>(status == UCS_OK, "UCX ", ucx().version, ": ", what, " failed: ", ucx().status_string(status),
                     "; ", kEngineVariable, "=sockets does without UCX");
}

class UcxEngine : public MessageEngine {
 public:
  UcxEngine(int rank, int size);
  ~UcxEngine() override;
  UcxEngine(const UcxEngine&) = delete;
  UcxEngine& operator=(const UcxEngine&) = delete;

  Bytes address() const override;
  void connect(int rank, std::span<const std::byte> address, bool same_host) override;

  void send_control(int to, uint64_t channel, uint32_t kind, std::span<const std::byte> bytes) override;
  void send_data(int to, uint64_t channel, uint64_t tag, const std::byte* data, int64_t bytes) override;
  void take(int from, uint64_t channel, uint64_t tag, std::byte* to, int64_t bytes) override;

  bool sending() const override;
  bool sending(int to, uint64_t channel) const override { return under_way(to, channel).sends > 0; }
  bool taking(int from, uint64_t channel) const override { return under_way(from, channel).takes > 0; }
  uint64_t sent(int to) const override { return peers_[static_cast<size_t>(to)].sent; }
  uint64_t received(int from) const override { return peers_[static_cast<size_t>(from)].received; }

  bool progress() override;
  std::optional<Control> next_control() override;
  std::optional<Trouble> trouble() const override;

  int descriptor() const override { return descriptor_.fd(); }
  bool arm() override { return worker_ == nullptr || ucx().arm(worker_) != UCS_ERR_BUSY; }
  void drop(uint64_t channel) override;

 private:
  struct Peer {
    Bytes address;
    bool same_host = false;
    ucp_ep_h endpoint = nullptr;  // made when something is first sent
    uint64_t sent = 0, received = 0;
    std::optional<Deadline> broken;  // since when it is
    ucs_status_t broken_by = UCS_OK;

    void breaks(ucs_status_t status) {
      if (!broken) broken = deadline_in(0);
      broken_by = status;
    }
  };
  // Between this rank and a peer, on a channel.
  struct UnderWay {
    int sends = 0, takes = 0;
  };
  enum class Way : uint8_t { send, take, control };
  struct Transfer {
    Way way = Way::send;
    int peer = 0;
    uint64_t channel = 0;
    uint32_t kind = 0;  // of a control message
    size_t bytes = 0;   // that it should have
    Bytes kept = {};    // of a control message
    UcxEngine* engine = nullptr;
    void* request = nullptr;
    bool ended = false, whole = false;
  };

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  UnderWay under_way(int rank, uint64_t channel) const;
  ucp_ep_h endpoint(int rank);
  void send(Transfer transfer, const std::byte* data, ucp_tag_t tag);
  template <class Start>
  void start(Transfer transfer, const Start& start);
  void end(Transfer& transfer, ucs_status_t status, size_t got);
  void fetch_controls();
  bool forget_ended();
  bool holds_memory_of(uint64_t channel) const;
  void halt();
  void blame(int rank, const std::string& why) {
    if (!trouble_) trouble_ = Trouble{rank, why};
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;  // null once it is of no further use
  Socket descriptor_;              // the worker's, which outlives it: a thread may be waiting for it
  const int rank_;
  std::vector<Peer> peers_;
  std::list<Transfer> transfers_;  // that UCX has not ended; they stay where they are
  std::map<std::pair<uint64_t, int>, UnderWay> under_way_;
  std::deque<Transfer> controls_;  // received
  bool any_ended_ = false;
  std::optional<Trouble> trouble_;
};

UcxEngine::UcxEngine(int rank, int size) : rank_(rank), peers_(static_cast<size_t>(size)) {
  require<CommError>(size <= kMostRanks, "UCX carries ", kMostRanks, " ranks at most, not ", size);
  ucp_config_t* config = nullptr;
  check_status(ucx().config_read(nullptr, nullptr, &config), "reading its settings");
  // A peer then reads this rank's memory and does not write to it: nothing comes after a call that has failed.
  if (std::getenv("UCX_RNDV_SCHEME") == nullptr) ucx().config_modify(config, "RNDV_SCHEME", "get_zcopy");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(size);
  const ucs_status_t status = ucx().init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx().config_release(config);
  check_status(status, "starting");
  try {
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check_status(ucx().worker_create(context_, &worker, &worker_), "starting a worker");
    int fd = -1;
    check_status(ucx().worker_descriptor(worker_, &fd), "making a descriptor");
    descriptor_ = Socket(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    require<CommError>(descriptor_.open(), "a descriptor of UCX cannot be duplicated: too many files are open");
  } catch (...) {
    if (worker_ != nullptr) ucx().worker_destroy(worker_);
    ucx().cleanup(context_);
    throw;
  }
}

UcxEngine::~UcxEngine() {
  if (std::ranges::any_of(transfers_, [](const Transfer& one) { return !one.ended; })) halt();
  if (worker_ == nullptr) return;
  forget_ended();
  ucx().worker_destroy(worker_);
  ucx().cleanup(context_);
}

// Ends what is under way, for good. Endpoints to other hosts are closed by force, as an adapter may be writing to this
// rank's memory. Within a host only progress() writes to it, and the worker stays as it is: UCX destroys none that is
// in the middle of something.
void UcxEngine::halt() {
  if (worker_ == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  std::vector<ucs_status_ptr_t> closing;
  for (Peer& one : peers_)
    if (one.endpoint != nullptr && !one.same_host) closing.push_back(ucx().ep_close(one.endpoint, &params));
  const Deadline end = deadline_in(kDropSeconds);
  for (ucs_status_ptr_t one : closing)
    while (UCS_PTR_IS_PTR(one) && ucx().request_status(one) == UCS_INPROGRESS && seconds_since(end) < 0)
      ucx().progress(worker_);
  worker_ = nullptr;
  context_ = nullptr;
}

MessageEngine::Bytes UcxEngine::address() const {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  check_status(ucx().worker_address(worker_, &address, &length), "reading its address");
  const auto* from = reinterpret_cast<const std::byte*>(address);
  Bytes bytes(from, from + length);
  ucx().release_address(worker_, address);
  return bytes;
}

void UcxEngine::connect(int rank, std::span<const std::byte> address, bool same_host) {
  peer(rank).address.assign(address.begin(), address.end());
  peer(rank).same_host = same_host;
}

ucp_ep_h UcxEngine::endpoint(int rank) {
  Peer& to = peer(rank);
  if (to.endpoint != nullptr) return to.endpoint;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(to.address.data());
  // With PEER, UCX 1.13 uses no shared memory, which cannot break.
  params.err_mode = to.same_host ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &to;
  params.err_handler.cb = [](void* peer, ucp_ep_h, ucs_status_t status) { static_cast<Peer*>(peer)->breaks(status); };
  check_status(ucx().ep_create(worker_, &params, &to.endpoint), "connecting");
  return to.endpoint;
}

bool UcxEngine::sending() const {
  return std::ranges::any_of(transfers_, [](const Transfer& one) { return one.way == Way::send && !one.ended; });
}

UcxEngine::UnderWay UcxEngine::under_way(int rank, uint64_t channel) const {
  const auto found = under_way_.find({channel, rank});
  return found == under_way_.end() ? UnderWay{} : found->second;
}

// Begins a transfer by start(transfer, params), one of UCX's calls that may be done at once, later or never.
template <class Start>
void UcxEngine::start(Transfer transfer, const Start& start) {
  transfer.engine = this;
  Transfer& kept = transfers_.emplace_back(std::move(transfer));
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.user_data = &kept;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  if (kept.way == Way::send) {
    params.cb.send = [](void*, ucs_status_t status, void* user) {
      auto* of = static_cast<Transfer*>(user);
      of->engine->end(*of, status, of->bytes);
    };
  } else {
    params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;  // else the number of bytes is not reported
    params.cb.recv = [](void*, ucs_status_t status, const ucp_tag_recv_info_t* came, void* user) {
      auto* of = static_cast<Transfer*>(user);
      of->engine->end(*of, status, came->length);
    };
  }
  const ucs_status_ptr_t status = start(kept, params);
  if (UCS_PTR_IS_PTR(status)) {
    kept.request = status;
    return;
  }
  end(kept, UCS_PTR_STATUS(status), kept.bytes);
}

// A transfer that has not arrived whole stays pending; a failure ends waits for it.
void UcxEngine::end(Transfer& transfer, ucs_status_t status, size_t got) {
  any_ended_ = transfer.ended = true;
  if (status == UCS_ERR_MESSAGE_TRUNCATED || (status == UCS_OK && got != transfer.bytes))
    return blame(transfer.peer, "it sent a malformed message");
  if (status == UCS_ERR_CANCELED) return;
  if (status != UCS_OK) return peer(transfer.peer).breaks(status);
  if (transfer.way == Way::send) {
    --under_way_[{transfer.channel, transfer.peer}].sends;
    return;
  }
  ++peer(transfer.peer).received;
  if (transfer.way == Way::take) --under_way_[{transfer.channel, transfer.peer}].takes;
  transfer.whole = true;
}

void UcxEngine::send(Transfer transfer, const std::byte* data, ucp_tag_t tag) {
  if (worker_ == nullptr) return;
  const int to = transfer.peer;
  ++peer(to).sent;
  ++under_way_[{transfer.channel, to}].sends;
  start(std::move(transfer), [&](const Transfer& kept, const ucp_request_param_t& params) {
    const void* from = kept.kept.empty() ? data : kept.kept.data();
    return ucx().tag_send(endpoint(to), from, kept.bytes, tag, &params);
  });
}

void UcxEngine::send_control(int to, uint64_t channel, uint32_t kind, std::span<const std::byte> bytes) {
  send({.way = Way::send, .peer = to, .channel = channel, .bytes = bytes.size(), .kept = {bytes.begin(), bytes.end()}},
       nullptr, tag_of_control(rank_, channel, kind));
}

void UcxEngine::send_data(int to, uint64_t channel, uint64_t tag, const std::byte* data, int64_t bytes) {
  send({.way = Way::send, .peer = to, .channel = channel, .bytes = static_cast<size_t>(bytes)}, data,
       tag_of_data(rank_, tag));
}

void UcxEngine::take(int from, uint64_t channel, uint64_t tag, std::byte* to, int64_t bytes) {
  if (worker_ == nullptr) return;
  ++under_way_[{channel, from}].takes;
  start({.way = Way::take, .peer = from, .channel = channel, .bytes = static_cast<size_t>(bytes)},
        [&](const Transfer& kept, const ucp_request_param_t& params) {
          return ucx().tag_recv(worker_, to, kept.bytes, tag_of_data(from, tag), kWholeTag, &params);
        });
}

void UcxEngine::fetch_controls() {
  for (;;) {
    ucp_tag_recv_info_t info{};
    const ucp_tag_message_h message = ucx().tag_probe(worker_, kControlTag, kControlTag, /*remove=*/1, &info);
    if (message == nullptr) return;
    const int from = static_cast<int>(info.sender_tag >> kSenderShift & (kMostRanks - 1));
    require<CommError>(static_cast<size_t>(from) < peers_.size(), "UCX: a message came from rank ", from,
                       ", which is not of this job");
    if (info.length > kMostControlBytes) return blame(from, "it sent a malformed message");
    start({.way = Way::control,
           .peer = from,
           .channel = info.sender_tag & kMostChannel,
           .kind = static_cast<uint32_t>(info.sender_tag >> kKindShift & (kMostKinds - 1)),
           .bytes = info.length,
           .kept = Bytes(info.length)},
          [&](Transfer& kept, const ucp_request_param_t& params) {
            return ucx().message_recv(worker_, kept.kept.data(), kept.bytes, message, &params);
          });
  }
}

bool UcxEngine::progress() {
  if (worker_ == nullptr) return false;
  bool moved = false;
  while (ucx().progress(worker_) != 0) moved = true;
  fetch_controls();
  return forget_ended() || moved;
}

// Whether there were any. A control message that is long may end after shorter ones that were sent later: it holds them
// up.
bool UcxEngine::forget_ended() {
  bool forgot = false, held_up = false;
  for (auto at = transfers_.begin(); any_ended_ && at != transfers_.end();) {
    const bool control = at->way == Way::control;
    held_up |= control && !at->ended;
    if (!at->ended || (control && held_up)) {
      ++at;
      continue;
    }
    if (at->request != nullptr) ucx().free(at->request);
    if (control && at->whole) controls_.push_back(std::move(*at));
    at = transfers_.erase(at);
    forgot = true;
  }
  any_ended_ = held_up;
  return forgot;
}

std::optional<MessageEngine::Control> UcxEngine::next_control() {
  if (controls_.empty()) return std::nullopt;
  Transfer front = std::move(controls_.front());
  controls_.pop_front();
  return Control{front.peer, front.channel, front.kind, std::move(front.kept)};
}

// The connections of links.h report why a rank is gone in more detail, and are given time to do so.
std::optional<MessageEngine::Trouble> UcxEngine::trouble() const {
  constexpr double kGraceSeconds = 2;
  if (trouble_) return trouble_;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if (const auto since = peers_[rank].broken; since && seconds_since(*since) > kGraceSeconds)
      return Trouble{static_cast<int>(rank),
                     cat("UCX lost its connection to it (", ucx().status_string(peers_[rank].broken_by), ")")};
  return std::nullopt;
}

bool UcxEngine::holds_memory_of(uint64_t channel) const {
  for (const Transfer& one : transfers_)
    if (one.channel == channel && !one.ended && one.kept.empty() && one.bytes > 0) return true;
  return false;
}

void UcxEngine::drop(uint64_t channel) {
  if (worker_ == nullptr || !holds_memory_of(channel)) return;
  for (const Transfer& one : transfers_)
    if (one.channel == channel && one.way == Way::take && !one.ended) ucx().cancel(worker_, one.request);
  for (const Deadline end = deadline_in(kDropSeconds); holds_memory_of(channel);) {
    progress();
    if (seconds_since(end) >= 0) return halt();
  }
}

}  // namespace

const std::string& why_no_ucx() {
  return ucx().trouble;
}

const std::string& ucx_version() {
  return ucx().version;
}

std::unique_ptr<MessageEngine> make_ucx_engine(int rank, int size) {
  return std::make_unique<UcxEngine>(rank, size);
}

}  // namespace witan

// An engine that carries the messages of a rank's groups to ranks of other processes, in place of the connections of
// links.h, which stay for meeting, heartbeats, failures and shutdown; and the choice of the engine, which must be the
// same on all ranks of a job.
//
// Control messages between two ranks, on one channel and of one kind, arrive in the order in which they were sent, and
// so does data with one tag. Messages move only during calls, in the calling thread, since an engine has no thread of
// its own. An engine does not find out by itself that a rank is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/comm/processes/launch.h"

namespace witan {

// Not thread-safe: its Links calls it with a mutex held, but for descriptor().
class MessageEngine {
 public:
  using Bytes = std::vector<std::byte>;
  static constexpr int kMostRanks = 1 << 20, kMostKinds = 4;
  static constexpr uint64_t kMostChannel = (uint64_t{1} << 40) - 1, kMostTag = (uint64_t{1} << 42) - 1;

  struct Control {
    int from;
    uint64_t channel;
    uint32_t kind;
    Bytes bytes;
  };
  struct Trouble {
    int rank;
    std::string why;
  };

  virtual ~MessageEngine() = default;

  // How other ranks reach this one: what they give to connect(), once, before they send it anything.
  virtual Bytes address() const = 0;
  virtual void connect(int rank, std::span<const std::byte> address, bool same_host) = 0;

  // The bytes are copied.
  virtual void send_control(int to, uint64_t channel, uint32_t kind, std::span<const std::byte> bytes) = 0;
  // The bytes stay where they are until nothing is on its way to that rank on the channel, or drop(). There may be
  // none: the message is sent nevertheless.
  virtual void send_data(int to, uint64_t channel, uint64_t tag, const std::byte* data, int64_t bytes) = 0;
  // The next data of that rank with the tag, of exactly so many bytes, go to `to`. Data with tags that nobody has asked
  // for wait, and touch nothing.
  virtual void take(int from, uint64_t channel, uint64_t tag, std::byte* to, int64_t bytes) = 0;

  virtual bool sending() const = 0;                           // anything
  virtual bool sending(int to, uint64_t channel) const = 0;   // something given to send_…() is on its way
  virtual bool taking(int from, uint64_t channel) const = 0;  // something given to take() has not arrived
  // Messages to and from a rank since the beginning.
  virtual uint64_t sent(int to) const = 0;
  virtual uint64_t received(int from) const = 0;

  virtual bool progress() = 0;  // whether anything has moved
  virtual std::optional<Control> next_control() = 0;
  // A rank that broke the rules, or to which the engine has lost its connection.
  virtual std::optional<Trouble> trouble() const = 0;

  // Readable once there is something for progress() to do. Only after arm(), which returns false when there is already.
  virtual int descriptor() const = 0;
  virtual bool arm() = 0;

  // Memory given to take() or send_data() for the channel is not touched any more. The engine may then be of no further
  // use: it is for groups that have failed.
  virtual void drop(uint64_t channel) = 0;
};

// Why there is no UCX here (no library, or a program that was built without its headers); empty: there is.
const std::string& why_no_ucx();
// "1.13.1"; where there is one.
const std::string& ucx_version();
// Throws CommError when it cannot be started. Only where there is one.
std::unique_ptr<MessageEngine> make_ucx_engine(int rank, int size);

class Links;

struct EngineChoice {
  std::string name;      // "UCX 1.13.1", "TCP connections"
  std::string why = {};  // why it is not UCX, where any engine would do
};

// "between processes by UCX 1.13.1", or why it is not that.
std::string format_engine(const EngineChoice& choice);

// Loads what choose_engine() may use. Before this process has other threads: UCX rewrites the C library's mmap(),
// munmap() and the like as it is loaded, and a thread that is in one of them may crash.
void load_engine(CommEngine wanted);

// Called by all ranks together, before they make groups. They send rank 0 their settings and their UCX version; rank 0
// answers whether all use UCX, which they do if all have the same version, and with its addresses. Throws CommError if
// settings differ, ConfigError if UCX is requested and this rank has none, and what Links::wait() throws.
EngineChoice choose_engine(Links& links, CommEngine wanted, double seconds);

}  // namespace witan

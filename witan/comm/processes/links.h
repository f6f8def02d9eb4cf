// The connections of a process to all other ranks of its job, shared by its groups and their threads.
//
// Each group has a channel. On it, a rank receives control messages, which wait until they are read, and
// data, which goes straight into the memory given to take(): a rank sends data only to a peer that has asked for it by
// a control message. One thread reads all connections; senders write from their own threads. Data have a tag, that of
// take(): an engine finds them by it, while the connections bring them in the order in which they were sent.
//
// Bytes are frames (inbox.h). A frame that breaks the rules, a connection that ends without a shutdown message, or
// silence mean that a rank is lost: every wait of this process ends, and all other ranks are told.
// The reading thread sends heartbeats on idle connections, so that silence is a failure: a process that is
// stopped, and one behind a network that drops packets, are silent; one that computes is not. A heartbeat also says
// whether a debugger holds the process; one that may be held is not lost by its silence. All members may be called by
// any thread.
//
// An engine (message_engine.h) may take over what groups send each other, data and control messages; the connections
// are then for heartbeats, failures and shutdown alone. A thread that waits moves what the engine carries: it may
// look for a moment, and then sleeps until the engine has something for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "witan/base/mutex.h"
#include "witan/base/timed_mutex.h"
#include "witan/comm/checks/debug_hold.h"
#include "witan/comm/failure.h"
#include "witan/comm/processes/bootstrap.h"
#include "witan/comm/processes/inbox.h"
#include "witan/comm/processes/message_engine.h"
#include "witan/comm/processes/process_failure.h"

namespace witan {

class Links {
 public:
  using Bytes = Inbox::Bytes;
  using Control = witan::Control;

  // `peers`: by rank; this process is `rank`. One that is silent for so many seconds is lost, unless a debugger may
  // hold it.
  Links(int rank, std::vector<Peer> peers, double silence_seconds, std::shared_ptr<DebugHold> hold = nullptr);
  // Tells all that this rank is done, and waits some seconds at most until they have heard it.
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }
  const std::string& host(int rank) const { return links_[static_cast<size_t>(rank)]->host; }
  const std::shared_ptr<Failure>& failure() const { return failure_; }
  const std::shared_ptr<DebugHold>& hold() const { return hold_; }

  // From now on the engine carries what is sent, on all ranks: before any group is used. `looks`: a thread that waits
  // may keep its core for a moment, as no other rank needs it.
  void use(std::unique_ptr<MessageEngine> engine, bool looks);
  // Whether data may be sent only once their receiver has asked for them; an engine keeps what comes early.
  bool data_are_asked_for() const { return engine_ == nullptr; }

  // Ends all waits, of all ranks; the first failure stays, and is returned.
  ProcessFailure fail(ProcessFailure failure);
  std::optional<ProcessFailure> failed() const;

  // These throw what throw_failure() does once a rank has failed.
  void send_control(int to, uint64_t channel, Control kind, std::span<const std::byte> bytes, double seconds);
  // An engine reads the data until View::sent().
  void send_data(int to, uint64_t channel, uint64_t tag, const std::byte* data, int64_t bytes, double seconds);
  // Returns when all that was sent to these ranks on the channel has gone, which it has at once without an engine.
  void wait_sent(const std::vector<int>& ranks, uint64_t channel, double seconds);
  // The next `bytes` of data of that rank on the channel, after those of earlier calls, go to `to`, which must stay
  // alive until arrived() or drop(). An engine also carries messages of no bytes; the connections have none.
  void take(int from, uint64_t channel, uint64_t tag, std::byte* to, int64_t bytes);
  // Nothing that take() was given is written any more, nor is what send_data() was given read.
  void drop(uint64_t channel);

  // What the conditions of a wait may read.
  class View {
   public:
    explicit View(Links& links) : links_(links) {}
    bool has_control(int from, uint64_t channel, Control kind) const;
    const Bytes& first_control(int from, uint64_t channel, Control kind) const;  // where there is one
    Bytes next_control(int from, uint64_t channel, Control kind);                // the same, and it is gone
    bool arrived(int from, uint64_t channel) const;                              // all that take() asked for
    bool sent(int to, uint64_t channel) const;                                   // all that was sent has gone
    bool left(int rank) const;  // it sent its shutdown message, and all that it sent before has come

   private:
    Links& links_;
  };
  // Returns when done(view). Throws a CommError of what lost(view) says, if it says something, or of late() after
  // `seconds`, or that a rank is silent, if one is: then all ranks fail.
  void wait(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
            const std::function<std::string(View&)>& late, double seconds);
  // The same, but whoever is late is no failure: then it returns false.
  bool wait_some(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost, double seconds);

 private:
  static constexpr double kMissedHeartbeats = 3;  // of a rank that is silent
  static constexpr uint64_t kHeld = 1;            // the channel of a heartbeat: a debugger holds it
  static constexpr const char* kNoMessage = "it sent a malformed message";

  // The connection to a rank, for whoever sends.
  struct Link {
    std::string host;
    Socket socket;
    TimedMutex sending;                           // held for a whole frame
    bool torn WITAN_GUARDED_BY(sending) = false;  // a frame was left unfinished
  };
  // What came from a rank.
  struct Incoming {
    bool ended = false;  // nothing more comes
    bool shut_down = false;
    uint64_t engine_messages = 0;  // that it had sent by an engine when it shut down
    Deadline heard;                // when its last bytes came
    Inbox inbox;
  };

  Link& link(int rank) { return *links_[static_cast<size_t>(rank)]; }
  Incoming& incoming(int rank) WITAN_REQUIRES(mutex_) { return incoming_[static_cast<size_t>(rank)]; }
  const Incoming& incoming(int rank) const WITAN_REQUIRES(mutex_) { return incoming_[static_cast<size_t>(rank)]; }

  void send(int to, const FrameHeader& header, std::span<const std::byte> bytes, double seconds);
  enum class Sent : uint8_t { whole, ended, late, stopped };
  Sent send_frame(Link& to, const FrameHeader& header, std::span<const std::byte> bytes, PatientDeadline deadline,
                  bool last_words) WITAN_REQUIRES(to.sending);
  // To all that are there, within a second; whoever does not take it is left.
  void tell_all(const std::function<FrameHeader(int rank)>& header, std::span<const std::byte> bytes);
  void tell(const ProcessFailure& failure);
  void throw_if_failed() const;
  ProcessFailure not_reading(int rank, double seconds) const;
  // Of the rank that has been silent for longest, if one has missed several heartbeats.
  std::optional<ProcessFailure> silence() const WITAN_REQUIRES(mutex_);

  // As wait(), with any failure for those who are late.
  void wait_for(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
                const std::function<ProcessFailure(View&)>& late, double seconds);
  // Makes whoever waits look again.
  void stir() WITAN_REQUIRES(mutex_);
  // Of waits where there is an engine.
  bool progress() WITAN_REQUIRES(mutex_);  // whether anything has moved
  std::optional<ProcessFailure> trouble() const WITAN_REQUIRES(mutex_);
  void sleep(Deadline until);  // until the engine, or somebody by stir(), has something
  // Progresses until done(), or for so many seconds.
  void linger(double seconds, const std::function<bool()>& done);

  // Of the reading thread.
  void read_all();
  void send_heartbeats();
  void notice_silence(Deadline due);                // due: when it should have been called
  void read_from(int rank);                         // until nothing is there
  bool read_some(int rank) WITAN_REQUIRES(mutex_);  // false: nothing to read now, or the peer has closed the connection
  void hear_frame(int rank) WITAN_REQUIRES(mutex_);
  void hear_failure(const Bytes& words) WITAN_REQUIRES(mutex_);
  void lose(int rank, const std::string& why) WITAN_REQUIRES(mutex_);
  bool record(const ProcessFailure& failure) WITAN_REQUIRES(mutex_);  // whether it is the first

  const int rank_;
  const double silence_seconds_, heartbeat_seconds_;
  std::vector<std::unique_ptr<Link>> links_;
  std::shared_ptr<Failure> failure_;
  const std::shared_ptr<DebugHold> hold_;  // null: no rank is held
  Socket wake_;                            // an eventfd: the reading thread is to end
  Socket stirred_;                         // an eventfd: the thread that sleeps in sleep() is to look

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Incoming> incoming_ WITAN_GUARDED_BY(mutex_);  // by rank
  std::optional<ProcessFailure> recorded_ WITAN_GUARDED_BY(mutex_);
  std::optional<ProcessFailure> untold_ WITAN_GUARDED_BY(mutex_);  // recorded by the reading thread
  bool closing_ WITAN_GUARDED_BY(mutex_) = false;
  bool dropped_ WITAN_GUARDED_BY(mutex_) = false;  // somebody waits no longer for data that may still come
  Bytes trash_ WITAN_GUARDED_BY(mutex_);
  std::unique_ptr<MessageEngine> engine_;  // null: there is none; set once, and used with the mutex held
  double look_seconds_ = 0;
  bool asleep_ WITAN_GUARDED_BY(mutex_) = false;                   // a thread is in sleep(); others wait for changed_
  std::optional<ProcessFailure> broken_ WITAN_GUARDED_BY(mutex_);  // a rank that broke the rules by the engine
  std::thread reader_;
};

}  // namespace witan

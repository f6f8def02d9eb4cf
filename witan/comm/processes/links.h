// The connections of a process to other ranks of its job, shared by its groups and their threads.
//
// Every rank is connected to rank 0 from the beginning (bootstrap.h). Two other ranks connect when one first sends the
// other something, so that only ranks that communicate have a connection. If two connect to each other at the same
// time, the connection of the higher rank counts. News about a rank (it is lost, has failed, is silent, is held by a
// debugger, or has left) reaches ranks without a connection to it through rank 0, which is the last to leave. Every
// rank that learns of a failure passes it on.
//
// Each group has a channel, on which a rank receives control messages and data. Control messages wait until they are
// read. Data goes straight into the memory given to take(), since a rank sends data only to a peer that has asked for
// it by a control message. One thread reads all connections and accepts new ones; senders write from their own threads.
// Data has the tag of its take(). An engine finds data by the tag; connections deliver it in the order in which it was
// sent.
//
// Connections carry frames (inbox.h). A rank is lost if a frame of it breaks the rules, if its connection ends without
// a shutdown message, or if it is silent. Then every wait of this process ends, and all other ranks are notified. The
// reading thread sends heartbeats on idle connections, so that a rank that computes is never silent, but a stopped
// process is, and so is one whose network drops packets. A heartbeat also says whether a debugger holds the process; a
// process that may be held is not lost by its silence. All members may be called by any thread.
//
// An engine (message_engine.h) may carry the data and control messages of groups; the connections then carry only
// heartbeats, failures and shutdown messages. A waiting thread drives the engine: it may poll for a moment, and then
// sleeps until the engine has something for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "witan/base/threads/mutex.h"
#include "witan/base/threads/timed_mutex.h"
#include "witan/comm/deadline.h"
#include "witan/comm/failure.h"
#include "witan/comm/processes/bootstrap.h"
#include "witan/comm/processes/inbox.h"
#include "witan/comm/processes/message_engine.h"
#include "witan/comm/processes/pending_connections.h"
#include "witan/comm/processes/process_failure.h"

namespace witan {

class Links {
 public:
  using Bytes = Inbox::Bytes;
  using Control = witan::Control;
  static constexpr double kForEver = 1e8;  // s, for waits: years; a clock holds it

  // A rank that is silent for `silence_seconds` is lost, unless a debugger may hold it.
  Links(Met met, double silence_seconds, std::shared_ptr<DebugHold> hold = nullptr);
  // Notifies all ranks that this one is done, and waits a few seconds at most until they know. Rank 0 waits until all
  // others are done, or lost.
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  int rank() const { return self_.rank; }
  int size() const { return static_cast<int>(links_.size()); }
  const std::string& host(int rank) const { return links_[static_cast<size_t>(rank)]->host; }
  const std::shared_ptr<Failure>& failure() const { return failure_; }
  const std::shared_ptr<DebugHold>& hold() const { return hold_; }

  // Makes the engine carry all messages. Call it on all ranks before any group is used. `looks`: a waiting thread may
  // spin for a moment, since no other rank needs its core.
  void use(std::unique_ptr<MessageEngine> engine, bool looks);
  // Whether data may be sent only once their receiver has asked for them; an engine keeps what comes early.
  bool data_are_asked_for() const { return engine_ == nullptr; }
  // Ranks to which there is a connection now.
  int connections() const;

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
  // Stops writing to buffers that take() was given, and reading those that send_data() was given.
  void drop(uint64_t channel);

  // The state that the conditions of a wait may read.
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
  // Like wait(), but returns false after `seconds` instead of failing.
  bool wait_some(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost, double seconds);
  // The next control message of that rank, once there is one. Throws as wait() does: `lost` if the rank has left
  // without it, `late` after `seconds`.
  Bytes await_control(int from, uint64_t channel, Control kind, const std::string& lost, const std::string& late,
                      double seconds);

 private:
  static constexpr double kMissedHeartbeats = 3;  // of a rank that is silent
  static constexpr double kTellSeconds = 1;       // for notifying all ranks together
  static constexpr const char* kNoMessage = "it sent a malformed message";

  // The contents of a heartbeat, which its channel carries: about its sender or, from rank 0, about another rank.
  struct Heartbeat {
    int about = -1;  // -1: who sends it
    bool held = false;
    double silent_seconds = 0;
    uint64_t packed() const;
    static Heartbeat of(uint64_t channel);
  };

  // The connection to a rank, for senders.
  struct Link {
    std::string host;
    Endpoint at;
    TimedMutex connecting;               // held by the thread that connects
    std::atomic<bool> connected{false};  // then there is a socket, which stays
    Socket socket;
    TimedMutex sending;                           // held for a whole frame
    bool torn WITAN_GUARDED_BY(sending) = false;  // a frame was left unfinished
  };
  // Data received from a rank.
  struct Incoming {
    bool ended = false;  // its connection: nothing more comes
    bool shut_down = false;
    uint64_t engine_messages = 0;  // that it had sent by an engine when it shut down
    Deadline heard;                // when its last bytes came
    // For a rank without a connection, what rank 0 reported last, and when.
    double silent_seconds = 0;
    Deadline reported{};
    Inbox inbox;
  };

  Link& link(int rank) { return *links_[static_cast<size_t>(rank)]; }
  Incoming& incoming(int rank) WITAN_REQUIRES(mutex_) { return incoming_[static_cast<size_t>(rank)]; }
  const Incoming& incoming(int rank) const WITAN_REQUIRES(mutex_) { return incoming_[static_cast<size_t>(rank)]; }

  bool connected(int rank) const { return links_[static_cast<size_t>(rank)]->connected.load(); }
  // Whether there is a connection to the rank now: makes one, unless that rank makes it at the same time. False when it
  // has left, or a failure has come between. Fails where the rank cannot be reached.
  bool reach(int rank, double seconds);
  bool connect_once(int rank, Deadline until, std::string& why);  // false: not of this job
  bool may_reach(int rank) const WITAN_REQUIRES(mutex_);
  void attach(int rank, Socket socket) WITAN_REQUIRES(mutex_);

  void send(int to, const FrameHeader& header, std::span<const std::byte> bytes, double seconds);
  enum class Sent : uint8_t { whole, ended, late, stopped };
  Sent send_frame(Link& to, const FrameHeader& header, std::span<const std::byte> bytes, PatientDeadline deadline,
                  bool last_words) WITAN_REQUIRES(to.sending);
  // Sends to all connected ranks within a second; ranks that do not read are skipped.
  void tell_all(const std::function<FrameHeader(int rank)>& header, std::span<const std::byte> bytes);
  void tell_one(int rank, const FrameHeader& header, std::span<const std::byte> bytes, Deadline deadline);
  void tell(const ProcessFailure& failure);
  // A leaving rank reports its messages to rank 0; rank 0 reports the ranks that have left.
  void tell_messages();
  void tell_departures(const std::vector<int>& departed);
  void send_departures(int to, std::span<const Departure> departures, Deadline deadline);
  void throw_if_failed() const;
  ProcessFailure not_reading(int rank, double seconds) const;
  // The failure of the rank that has been silent for longest, if one has missed several heartbeats.
  std::optional<ProcessFailure> silence() const WITAN_REQUIRES(mutex_);
  double silent_seconds(int rank) const WITAN_REQUIRES(mutex_);  // 0: it is not, or has left
  // How long a rank that gives up waits for reports of rank 0 about ranks without a connection.
  double grace_seconds() const;

  // Like wait(), but `late` returns any failure.
  void wait_for(const std::function<bool(View&)>& done, const std::function<std::string(View&)>& lost,
                const std::function<ProcessFailure(View&)>& late, double seconds);
  // Wakes all waiting threads to check their conditions.
  void wake_sleeper() WITAN_REQUIRES(mutex_);
  // Waits that use an engine.
  bool progress() WITAN_REQUIRES(mutex_);  // whether anything has moved
  std::optional<ProcessFailure> trouble() const WITAN_REQUIRES(mutex_);
  void sleep(Deadline until);  // until the engine has something, or wake_sleeper()
  // Progresses until done(), or for `seconds`.
  void linger(double seconds, const std::function<bool()>& done);
  bool all_left() const WITAN_REQUIRES(mutex_);  // or their connections have ended
  void await_departures();                       // of all others
  void wake_reader();

  // Functions of the reading thread.
  void read_all();
  void pass_on();  // sends new failures and departures to ranks that may not know them
  void let_in(std::span<const pollfd> polled);
  void send_heartbeats();
  std::vector<Heartbeat> heartbeats();
  void notice_silence(Deadline due);                // due: when it should have been called
  void read_from(int rank);                         // until nothing is there
  bool read_some(int rank) WITAN_REQUIRES(mutex_);  // false: nothing to read now, or the peer has closed the connection
  void handle_frame(int rank) WITAN_REQUIRES(mutex_);
  void handle_failure(const Bytes& words) WITAN_REQUIRES(mutex_);
  void handle_heartbeat(int rank, const Heartbeat& heartbeat) WITAN_REQUIRES(mutex_);
  bool on_peer_left(int rank, const Bytes& words) WITAN_REQUIRES(mutex_);  // false: malformed
  void lose(int rank, const std::string& why) WITAN_REQUIRES(mutex_);
  bool record(const ProcessFailure& failure) WITAN_REQUIRES(mutex_);  // whether it is the first
  bool is_new(const ProcessFailure& failure) WITAN_REQUIRES(mutex_);  // must be passed on

  const Member self_;
  const double silence_seconds_, heartbeat_seconds_;
  std::vector<std::unique_ptr<Link>> links_;
  std::shared_ptr<Failure> failure_;
  const std::shared_ptr<DebugHold> hold_;  // null: no rank is held
  Socket wake_;                            // an eventfd: wakes the reading thread
  Socket sleeper_event_;                   // an eventfd: wakes the thread in sleep()

  Socket no_failure_;  // its other end is closed once there is one

  mutable Mutex mutex_;
  CondVar changed_;
  Socket no_failure_end_ WITAN_GUARDED_BY(mutex_);
  Socket listener_ WITAN_GUARDED_BY(mutex_);  // closed on rank 0, to which all are connected
  Roster roster_ WITAN_GUARDED_BY(mutex_);    // who may connect
  std::optional<PendingConnections> pending_connections_ WITAN_GUARDED_BY(mutex_);
  std::vector<Incoming> incoming_ WITAN_GUARDED_BY(mutex_);  // by rank
  std::optional<ProcessFailure> recorded_ WITAN_GUARDED_BY(mutex_);
  std::optional<ProcessFailure> pending_failure_ WITAN_GUARDED_BY(mutex_);  // to be passed on by the reading thread
  // On rank 0: ranks whose leaving is not reported yet, and the messages that they sent by an engine, by receiver.
  std::vector<int> departed_ WITAN_GUARDED_BY(mutex_);
  std::map<int, std::map<int, uint64_t>> sent_by_ WITAN_GUARDED_BY(mutex_);
  bool closing_ WITAN_GUARDED_BY(mutex_) = false;
  bool closed_ WITAN_GUARDED_BY(mutex_) = false;     // the reading thread is to end
  bool passed_on_ WITAN_GUARDED_BY(mutex_) = false;  // a failure, as it leaves
  bool dropped_ WITAN_GUARDED_BY(mutex_) = false;    // somebody waits no longer for data that may still come
  Bytes trash_ WITAN_GUARDED_BY(mutex_);
  std::unique_ptr<MessageEngine> engine_;  // null: there is none; set once, and used with the mutex held
  double look_seconds_ = 0;
  bool asleep_ WITAN_GUARDED_BY(mutex_) = false;                   // a thread is in sleep(); others wait for changed_
  std::optional<ProcessFailure> broken_ WITAN_GUARDED_BY(mutex_);  // a rank that broke the rules by the engine
  std::thread reader_;
};

}  // namespace witan

// Notes about kept work that a command of `witan data` prints when a signal or an error stops it halfway.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>

#include "witan/data/prepare/prepare.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {

// While an object lives, SIGINT, SIGTERM and SIGHUP end the process with a line that says what is kept and how to
// continue. The exit code is 130 after SIGINT and 75 after the others, as for training. Signals that the process
// ignores, as under nohup, stay ignored. Objects nest: the newest one answers. Only one thread of a process may create
// them.
class InterruptNote {
 public:
  enum class Ends : uint8_t {
    at_once,   // at once, as by a kill: for work that survives one
    at_check,  // when check() is called, so that unfinished files are removed; a second signal ends it at once
  };
  // `kept`: the end of the line "witan: stopped: …", for example "complete files are kept in data/dclm; the same
  // command continues".
  explicit InterruptNote(const std::string& kept, Ends ends = Ends::at_once);
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  // Throws Error with the line and its exit code if a signal has arrived. Thread-safe.
  void check() const;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  static void on_signal(int signal);

  const std::string kept_, line_;
  const Ends ends_;
  const InterruptNote* const before_;
  struct sigaction actions_before_[std::size(kSignals)];
};

// Runs `work`, which calls prepare_dataset() for shards with this prefix. If a signal or an error ends it, a line says
// what is kept and how to continue. Errors are rethrown.
PreparedDataset saying_what_is_kept(Progress& progress, const fs::path& prefix,
                                    const std::function<PreparedDataset()>& work);

}  // namespace witan::cli

// What a command of `witan data` prints about kept work when a signal or an error stops it halfway.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>

#include "witan/data/prepare/prepare.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {

// While one is alive, SIGINT, SIGTERM and SIGHUP end the process, with a line that says what is kept and how to go on;
// the exit code is 130 after SIGINT and 75 after the others, as of a run. Signals that the process ignores, as under
// nohup, stay ignored. The one made last answers, and the one before it does so again when it is gone. A process has
// one thread that makes them.
class InterruptNote {
 public:
  enum class Ends : uint8_t {
    at_once,   // as a kill would: for work that survives one
    at_check,  // when check() is called, so that unfinished files are removed; the second signal ends it at once
  };
  // `kept`: half a sentence, "files that are whole are kept in data/dclm; the same command continues". The line is
  // "witan: stopped: files that ...".
  explicit InterruptNote(const std::string& kept, Ends ends = Ends::at_once);
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  // Throws Error with the line and its exit code if a signal has come. Thread-safe.
  void check() const;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  static void on_signal(int signal);

  const std::string kept_, line_;
  const Ends ends_;
  const InterruptNote* const before_;
  struct sigaction actions_before_[std::size(kSignals)];
};

// Runs `work`, which calls prepare_dataset() for shards of this prefix. A signal that ends it, and an error, say what
// is kept, and how to go on; the error is passed on.
PreparedDataset saying_what_is_kept(Progress& progress, const fs::path& prefix,
                                    const std::function<PreparedDataset()>& work);

}  // namespace witan::cli

#include "witan/cli/data/interrupt.h"

#include <unistd.h>

#include <atomic>

#include "witan/base/error.h"

namespace witan::cli {
namespace {

// Lock-free, since signal handlers on any thread use them.
std::atomic<const InterruptNote*> current_note = nullptr;
std::atomic<int> signal_of_note = 0;
static_assert(std::atomic<const InterruptNote*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

ExitCode code_of_signal(int signal) {
  return signal == SIGINT ? ExitCode::interrupted : ExitCode::preempted;
}

}  // namespace

InterruptNote::InterruptNote(const std::string& kept, Ends ends)
    : kept_(kept), line_("\nwitan: stopped: " + kept + "\n"), ends_(ends), before_(current_note) {
  if (!before_) signal_of_note = 0;
  current_note = this;
  struct sigaction action {};
  action.sa_handler = on_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &action, &actions_before_[i]);
    if (actions_before_[i].sa_handler == SIG_IGN) ::sigaction(kSignals[i], &actions_before_[i], nullptr);
  }
}

InterruptNote::~InterruptNote() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &actions_before_[i], nullptr);
  current_note = before_;
}

// Calls only functions that are safe in a signal handler: write() and _exit().
void InterruptNote::on_signal(int signal) {
  const InterruptNote* note = current_note;
  const bool first = signal_of_note.exchange(signal) == 0;
  if (note && note->ends_ == Ends::at_check && first) return;
  if (note) [[maybe_unused]]
    const ssize_t written = ::write(STDERR_FILENO, note->line_.data(), note->line_.size());
  ::_exit(static_cast<int>(code_of_signal(signal)));
}

void InterruptNote::check() const {
  if (const int signal = signal_of_note; signal != 0) throw Error(code_of_signal(signal), "stopped: " + kept_);
}

PreparedDataset saying_what_is_kept(Progress& progress, const fs::path& prefix,
                                    const std::function<PreparedDataset()>& work) {
  const std::string partial = prefix.string() + ".partial";
  const InterruptNote note(
      cat("complete pieces of the tokens are kept in ", partial, ".*; the same command continues after them"));
  try {
    return work();
  } catch (const std::exception&) {
    if (fs::exists(partial + ".json"))
      progress.note(cat("kept: the tokens up to the last complete piece, in ", partial,
                        ".*; the same command continues after it, and without these files starts over"));
    throw;
  }
}

}  // namespace witan::cli

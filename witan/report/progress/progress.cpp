#include "witan/report/progress/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// Ignores failures: a log on a full disk or a lost terminal must not end the work that is reported.
void say(std::FILE* out, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out);
}

constexpr double kSecondsBetweenDrawings = 0.25;
constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::string_view kResetColour = "\x1b[0m";

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Length of the control sequence or the code point at the start of a non-empty text, and the columns it takes.
struct Piece {
  size_t bytes;
  int columns;
};
Piece first_piece(std::string_view text) {
  if (text.starts_with("\x1b[")) {
    const auto final_byte = std::find_if(text.begin() + 2, text.end(), [](char c) { return c >= 0x40 && c <= 0x7e; });
    return {std::min(static_cast<size_t>(final_byte - text.begin()) + 1, text.size()), 0};
  }
  size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) ++bytes;
  return {bytes, 1};
}

}  // namespace

int display_width(std::string_view line) {
  int columns = 0;
  while (!line.empty()) {
    const Piece piece = first_piece(line);
    columns += piece.columns;
    line.remove_prefix(piece.bytes);
  }
  return columns;
}

std::string fit_width(std::string_view line, int width) {
  if (display_width(line) <= width) return std::string(line);
  std::string cut;
  bool coloured = false;
  for (int left = width - 1; !line.empty();) {
    const Piece piece = first_piece(line);
    if (left < piece.columns) break;
    left -= piece.columns;
    coloured |= piece.columns == 0;
    cut += line.substr(0, piece.bytes);
    line.remove_prefix(piece.bytes);
  }
  if (width > 0) cut += "…";
  if (coloured) cut += kResetColour;
  return cut;
}

ProgressOptions progress_options(std::FILE* out) {
  const auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  ProgressOptions options;
  options.is_tty = ::isatty(::fileno(out)) == 1 && variable("TERM") != "dumb";
  options.colour = options.is_tty && variable("NO_COLOR").empty();
  return options;
}

Progress::Progress(std::FILE* out, ProgressOptions options) : out_(out), options_(std::move(options)) {
  if (!options_.now) options_.now = steady_seconds;
  said_at_ = options_.now();
}

Progress::~Progress() {
  clear();
}

int Progress::width() const {
  if (options_.width > 0) return options_.width;
  winsize size{};
  if (::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

int Progress::milestone_of(double fraction) const {
  return static_cast<int>(100 * std::clamp(fraction, 0.0, 1.0) + 1e-9) / options_.milestone_percent;
}

void Progress::update(double fraction, const std::function<std::string(int width)>& make) {
  const MutexLock lock(mutex_);
  if (options_.is_tty) {
    const double now = options_.now();
    if (now - drawn_at_ < kSecondsBetweenDrawings) return;
    drawn_at_ = now;
    // One column stays free: some terminals wrap when the last one is filled.
    line_ = fit_width(make(width() - 1), width() - 1);
    draw();
    return;
  }
  const int milestone = milestone_of(fraction);
  const double now = options_.now();
  if (std::exchange(fraction_, fraction) > fraction) {
    milestone_ = -1;
    said_at_ = now;
  }
  const double silence = now - said_at_;
  const bool due = milestone > milestone_ && silence >= options_.quiet_seconds;
  if (!due && silence < options_.longest_silence) return;
  milestone_ = milestone;
  said_at_ = now;
  say(out_, make(0) + "\n");
  std::fflush(out_);
}

void Progress::milestone(double fraction, const std::function<std::string(int width)>& make) {
  const MutexLock lock(mutex_);
  erase();
  line_.clear();
  const int columns = options_.is_tty ? width() - 1 : 0;
  say(out_, (options_.is_tty ? fit_width(make(columns), columns) : make(0)) + "\n");
  std::fflush(out_);
  milestone_ = milestone_of(fraction);
  fraction_ = fraction;
  said_at_ = options_.now();
}

void Progress::note(std::string_view line) {
  const MutexLock lock(mutex_);
  erase();
  say(out_, printable(line) + "\n");
  draw();
}

void Progress::print(std::string_view line) {
  const MutexLock lock(mutex_);
  erase();
  std::fflush(out_);
  fmt::print(options_.data, "{}\n", line);
  std::fflush(options_.data);
  draw();
}

void Progress::clear() {
  const MutexLock lock(mutex_);
  erase();
  line_.clear();
  drawn_at_ = -1e9;
  std::fflush(out_);
}

void Progress::draw() {
  if (!line_.empty()) say(out_, cat(kEraseLine, line_));
  std::fflush(out_);
}

void Progress::erase() {
  if (!line_.empty()) say(out_, kEraseLine);
}

TaskProgress::TaskProgress(Progress& progress, std::string label, double total, std::string unit, double look_seconds)
    : progress_(progress),
      label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      stop_clock_(look_seconds),
      ticker_(look_seconds, [this] {
        const MutexLock lock(mutex_);
        note_stop();
      }) {
  const MutexLock lock(mutex_);
  rate_.update(note_stop(), 0);
}

double TaskProgress::note_stop() {
  const double now = progress_.now();
  rate_.skip(stop_clock_.poll(now));
  return now;
}

void TaskProgress::update(double done) {
  const MutexLock lock(mutex_);
  rate_.update(note_stop(), done);
  progress_.update(done / total_, [&](int width) {
    mutex_.assert_held();
    return line(done, width);
  });
}

std::string TaskProgress::line(double done, int width) const {
  const double share = std::clamp(done / total_, 0.0, 1.0);
  std::string text = label_;
  if (width > 0) {
    constexpr size_t kBar = 24;
    const auto full = static_cast<size_t>(share * kBar);
    text += fmt::format(" [{}{}]", std::string(full, '#'), std::string(kBar - full, '.'));
  }
  text += fmt::format(" {:3.0f} %", 100 * share);
  if (const auto rate = rate_.rate())
    text += unit_ == "B" ? fmt::format("  {}/s", format_bytes(*rate))
                         : fmt::format("  {} {}/s", format_count(*rate), unit_);
  if (const auto left = rate_.remaining(total_); left && *left > 0) text += "  ETA " + format_duration(*left);
  return text;
}

}  // namespace witan

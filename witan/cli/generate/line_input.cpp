#include "witan/cli/generate/line_input.h"

#include <histedit.h>
#include <unistd.h>

#include <cstdlib>

#include "witan/base/error.h"

namespace witan::cli {
namespace {

constexpr int kRemembered = 1000;  // lines

struct FreeBuffer {
  char* bytes = nullptr;
  ~FreeBuffer() { std::free(bytes); }
};

std::string without_end(std::string line) {
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  return line;
}

}  // namespace

struct LineInput::Editor {
  Editor(std::FILE* in, std::FILE* out, std::FILE* err, std::string name)
      : program(std::move(name)), line(::el_init(program.c_str(), in, out, err)), past(::history_init()) {
    ::el_set(line, EL_CLIENTDATA, this);
    ::el_set(
        line, EL_PROMPT, +[](::EditLine* of) {
          Editor* self = nullptr;
          ::el_get(of, EL_CLIENTDATA, &self);
          return self->prompt.data();
        });
    ::el_set(line, EL_EDITOR, "emacs");
    ::el_set(line, EL_SIGNAL, 1);  // a signal at the prompt leaves the terminal as it was
    ::el_set(line, EL_HIST, ::history, past);
    ::HistEvent event;
    ::history(past, &event, H_SETSIZE, kRemembered);
    ::el_source(line, nullptr);
  }
  ~Editor() {
    ::history_end(past);
    ::el_end(line);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  std::string program, prompt;
  ::EditLine* line;
  ::History* past;
};

LineInput::LineInput(std::FILE* in, std::FILE* out, std::FILE* err, std::string program) : in_(in) {
  const auto is_terminal = [](std::FILE* file) { return ::fileno(file) >= 0 && ::isatty(::fileno(file)); };
  if (is_terminal(in) && is_terminal(out)) editor_ = std::make_unique<Editor>(in, out, err, std::move(program));
}

LineInput::~LineInput() = default;

std::optional<std::string> LineInput::next(const std::string& prompt) {
  if (!editor_) {
    FreeBuffer line;
    size_t size = 0;
    const ssize_t length = ::getline(&line.bytes, &size, in_);
    if (length < 0) return {};
    return without_end({line.bytes, static_cast<size_t>(length)});
  }
  editor_->prompt = prompt;
  int length = 0;
  const char* line = ::el_gets(editor_->line, &length);
  if (!line || length <= 0) return {};
  std::string text = without_end({line, static_cast<size_t>(length)});
  if (!text.empty()) {
    ::HistEvent event;
    ::history(editor_->past, &event, H_ENTER, text.c_str());
  }
  return text;
}

std::string read_all(std::FILE* in) {
  constexpr size_t kMost = 256 << 20, kPiece = 1 << 16;
  std::string text;
  for (size_t got = kPiece; got == kPiece;) {
    const size_t before = text.size();
    text.resize(before + kPiece);
    got = std::fread(text.data() + before, 1, kPiece, in);
    text.resize(before + got);
    require<DataError>(text.size() <= kMost, "standard input holds more than 256 MiB: give files instead");
  }
  require<IoError>(!std::ferror(in), "cannot read standard input");
  return text;
}

}  // namespace witan::cli

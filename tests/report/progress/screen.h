// A fake terminal for tests of progress output: a stream into memory, and a clock that tests advance.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "witan/report/progress/progress.h"

namespace witan::test {

struct Screen {
  Screen() : out(::open_memstream(&text, &size)) {}
  ~Screen() {
    std::fclose(out);
    std::free(text);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ProgressOptions options(bool tty, int width = 40) {
    return {.is_tty = tty, .width = width, .quiet_seconds = 0, .now = [this] { return now; }};
  }
  std::string shown() {  // everything written so far
    std::fflush(out);
    return {text, size};
  }
  std::string line() {  // the last drawn line
    const std::string all = shown();
    return all.substr(all.rfind("\r\x1b[K") + 4);
  }

  char* text = nullptr;
  size_t size = 0;
  std::FILE* out;
  double now = 1000;
};

}  // namespace witan::test

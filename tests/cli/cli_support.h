// Runs the program in this process and captures its output.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/temp_folder.h"
#include "witan/cli/run.h"

namespace witan::test {

struct Said {
  int code = -1;
  std::string out, err;
};

using Words = std::vector<std::string>;

// Splits a command line without quotes into words and appends them: {"train", "--ranks", "2"}.
inline Words words_in(const std::string& line, Words words = {}) {
  std::istringstream text(line);
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

// A flag may be given only once: a value in `more` replaces the same flag in `words`.
inline Words with_flags(Words words, const Words& more) {
  for (size_t i = 0; i < more.size(); ++i) {
    const auto given = std::ranges::find(words, more[i]);
    if (more[i].starts_with("--") && given != words.end() && i + 1 < more.size())
      *(given + 1) = more[++i];
    else
      words.push_back(more[i]);
  }
  return words;
}

// A stream into memory.
class Capture {
 public:
  Capture() : file_(::open_memstream(&text_, &size_)) {}
  ~Capture() {
    std::fclose(file_);
    std::free(text_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

// witan ARGS < input
inline Said witan(const std::vector<std::string>& args, const std::string& input = "") {
  std::vector<const char*> argv = {"witan"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  Capture out, err;
  std::FILE* in = std::tmpfile();
  std::fwrite(input.data(), 1, input.size(), in);
  std::rewind(in);
  cli::Context context{in, out.file(), err.file()};
  const int code = cli::run(static_cast<int>(argv.size()), argv.data(), context);
  std::fclose(in);
  return {code, out.text(), err.text()};
}

// Expects that the command ends with this code, without data, and with a message containing all these pieces.
inline void expect_refusal(const std::vector<std::string>& args, int code, const std::vector<std::string>& pieces) {
  const Said said = witan(args);
  EXPECT_EQ(said.code, code) << said.err;
  EXPECT_EQ(said.out, "");
  EXPECT_TRUE(said.err.find("witan: error: ") != std::string::npos) << said.err;
  for (const std::string& piece : pieces)
    EXPECT_TRUE(said.err.find(piece) != std::string::npos) << "no \"" << piece << "\" in: " << said.err;
}

inline bool contains(const std::string& text, const std::string& piece) {
  return text.find(piece) != std::string::npos;
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Text similar enough to English to train a tokenizer.
inline std::string some_text(int sentences) {
  const char* words[] = {"the", "king", "asked", "his", "council", "of", "experts", "about", "ships", "and", "corn"};
  std::string text;
  unsigned state = 7;
  for (int sentence = 0; sentence < sentences; ++sentence) {
    for (int word = 0; word < 9; ++word) {
      state = state * 1664525u + 1013904223u;
      text += std::string(word ? " " : "") + words[(state >> 16) % 11];
    }
    text += sentence % 10 == 9 ? ".\n\n" : ". ";
  }
  return text;
}

}  // namespace witan::test

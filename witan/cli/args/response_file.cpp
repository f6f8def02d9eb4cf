#include "witan/cli/args/response_file.h"

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/cli/args/recipes.h"

namespace witan::cli {
namespace {

constexpr size_t kMostWords = 65536;

class Splitter {
 public:
  Splitter(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  std::vector<Argument> split() {
    while (at_ < text_.size()) step();
    refuse_if(quote_ != 0, cat("a quote (", quote_, ") opened in line ", quote_line_, " is never closed"));
    end_word();
    return std::move(words_);
  }

 private:
  std::string origin() const { return cat(source_, ":", line_); }
  void refuse_if(bool bad, const std::string& why) const { require<UsageError>(!bad, origin(), ": ", why); }

  void end_word() {
    if (!open_) return;
    refuse_if(words_.size() >= kMostWords, cat("more than ", kMostWords, " arguments"));
    words_.push_back({std::move(word_), word_origin_});
    word_.clear();
    open_ = false;
  }

  void add(char c) {
    if (!open_) word_origin_ = origin();
    open_ = true;
    word_ += c;
  }

  // Only a shell could expand `$NAME`, and running a shell would be wrong.
  void refuse_expansion(char c) const {
    refuse_if(
        c == '$' || c == '`',
        cat("a shell would expand ", clipped(text_.substr(at_, 24)),
            ", but flags are read from this file without a shell: write the value itself, or quote it with '...'"));
  }

  void step() {
    const char c = text_[at_];
    const auto byte = static_cast<unsigned char>(c);
    refuse_if((byte < 0x20 && c != '\n' && c != '\t' && c != '\r') || byte == 0x7F,
              cat("byte ", static_cast<int>(byte), " is not text: is this a list of flags?"));
    if (quote_ != 0)
      in_quotes(c);
    else
      outside(c);
    if (c == '\n') ++line_;
    ++at_;
  }

  void in_quotes(char c) {
    if (c == quote_) {
      quote_ = 0;
      return;
    }
    if (quote_ == '"') {
      refuse_expansion(c);
      const bool escapes = c == '\\' && at_ + 1 < text_.size() &&
                           std::string_view("\"\\$`").find(text_[at_ + 1]) != std::string_view::npos;
      if (escapes) {
        add(text_[++at_]);
        return;
      }
    }
    add(c);
  }

  void outside(char c) {
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      end_word();
    } else if (c == '#' && !open_) {
      while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
    } else if (c == '\'' || c == '"') {
      if (!open_) word_origin_ = origin();
      open_ = true;  // '' is a word, too
      quote_ = c;
      quote_line_ = line_;
    } else if (c == '\\') {
      after_backslash();
    } else {
      refuse_expansion(c);
      add(c);
    }
  }

  // A backslash at the end of a line joins it to the next, as scripts write long commands.
  void after_backslash() {
    if (text_.substr(at_ + 1).starts_with("\r\n")) ++at_;
    if (++at_ >= text_.size()) return;
    if (text_[at_] == '\n')
      ++line_;
    else
      add(text_[at_]);
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  int64_t line_ = 1, quote_line_ = 1;
  char quote_ = 0;
  bool open_ = false;
  std::string word_, word_origin_;
  std::vector<Argument> words_;
};

std::string read_list(const std::string& path) {
  try {
    return read_recipe(path, "@");
  } catch (const ConfigError& e) {
    const std::string why = e.what();
    throw UsageError(why.starts_with('@') ? why : cat("@", clipped(path), ": ", why));
  }
}

}  // namespace

std::vector<Argument> split_arguments(std::string_view text, const std::string& source) {
  const size_t bad = find_invalid_utf8(text);
  require<UsageError>(bad == std::string_view::npos, source, ": byte ", bad, " is not valid UTF-8: is this a list of ",
                      "flags?");
  return Splitter(text, source).split();
}

std::vector<Argument> expand_response_files(const std::vector<std::string>& words, std::vector<std::string>& lists) {
  std::vector<Argument> out;
  for (const std::string& word : words) {
    if (!word.starts_with('@')) {
      out.push_back({word, kCommandLine});
      continue;
    }
    const std::string path = word.substr(1);
    require<UsageError>(!path.empty(), "command line: @ without a file name: write @FILE, where FILE lists flags");
    lists.push_back(path);
    for (Argument& inner : split_arguments(read_list(path), clipped(path))) {
      require<UsageError>(!inner.text.starts_with('@'), inner.origin, ": ", clipped(inner.text),
                          ": a list of flags cannot include another one: give both on the command line");
      out.push_back(std::move(inner));
    }
  }
  return out;
}

}  // namespace witan::cli

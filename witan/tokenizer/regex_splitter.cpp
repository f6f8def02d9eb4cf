#include "witan/tokenizer/regex_splitter.h"

#include <oniguruma.h>

#include <array>
#include <new>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/regex_translation.h"

namespace witan {
namespace {

// Retries of one match, tried with one bound after the other: the last is the reference's own.
constexpr std::array<unsigned long, 5> kRetries = {100'000, 400'000, 1'600'000, 6'400'000, 10'000'000};
// What a text may take of bounds that were not enough, which is at least a quarter of all retries, and more for each of
// its bytes: about a second.
constexpr unsigned long kRetriesOfText = 10'000'000, kRetriesOfByte = 16;
constexpr unsigned kStackOfMatch = 6'000'000;  // places to return to: 300 MiB

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string message_of(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = info ? onig_error_code_to_str(text.data(), code, info) : onig_error_code_to_str(text.data(), code);
  return {reinterpret_cast<const char*>(text.data()), static_cast<size_t>(length)};
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct FreeParameters {
  void operator()(OnigMatchParam* parameters) const { onig_free_match_param(parameters); }
};

template <class Pointer>
Pointer allocated(Pointer p) {
  if (!p) throw std::bad_alloc();
  return p;
}

// The text with control characters in place of bytes that are not valid UTF-8; every byte stays where it is.
std::string with_control_characters(std::string_view text, size_t bad) {
  std::string out(text);
  while (bad < out.size()) {
    out[bad] = '\x01';
    const size_t next = find_invalid_utf8(std::string_view(out).substr(bad + 1));
    if (next == std::string_view::npos) break;
    bad += 1 + next;
  }
  return out;
}

size_t length_of_character(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Searches of one text, within a budget that is the same on every machine.
class BoundedSearch {
 public:
  explicit BoundedSearch(size_t bytes) : of_bytes_(kRetriesOfByte * bytes), left_(kRetriesOfText + of_bytes_) {
    onig_initialize_match_param(limits_.get());
    onig_set_match_stack_limit_size_of_match_param(limits_.get(), kStackOfMatch);
  }
  int find(regex_t* regex, std::string_view text, size_t from, OnigRegion* region) {
    const OnigUChar *begin = bytes_of(text), *end = begin + text.size();
    for (const unsigned long retries : kRetries) {
      onig_set_retry_limit_in_match_of_match_param(limits_.get(), retries);
      onig_set_retry_limit_in_search_of_match_param(limits_.get(), retries + of_bytes_);
      const int found =
          onig_search_with_param(regex, begin, end, begin + from, end, region, ONIG_OPTION_NONE, limits_.get());
      const bool gave_up = found == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || found == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
      if (!gave_up || retries >= left_) return found;
      left_ -= retries;
    }
    return ONIGERR_RETRY_LIMIT_IN_MATCH_OVER;
  }

 private:
  std::unique_ptr<OnigMatchParam, FreeParameters> limits_{allocated(onig_new_match_param())};
  unsigned long of_bytes_, left_;
};

}  // namespace

struct RegexSplitter::Code {
  regex_t* compiled = nullptr;
  ~Code() { onig_free(compiled); }
};

RegexSplitter::RegexSplitter(std::string regex) : regex_(std::move(regex)) {
  static const int ready = [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    return onig_initialize(&utf8, 1);
  }();
  require<DataError>(ready == ONIG_NORMAL, "Oniguruma cannot start: ", message_of(ready));
  code_ = std::make_unique<Code>();
  const std::string translated = with_own_unicode(regex_);
  const OnigUChar* pattern = bytes_of(translated);
  OnigErrorInfo info{};
  const int error = onig_new(&code_->compiled, pattern, pattern + translated.size(), ONIG_OPTION_NONE,
                             ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  require<DataError>(error == ONIG_NORMAL, "the split pattern \"", clipped(regex_, 200),
                     "\" does not compile: ", message_of(error, &info));
}

RegexSplitter::~RegexSplitter() = default;
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;

void RegexSplitter::split(std::string_view text, const PieceSink& sink) const {
  each(text, [&](std::string_view piece, bool) {
    if (!piece.empty()) sink(piece);
  });
}

void RegexSplitter::each(std::string_view text,
                         const std::function<void(std::string_view piece, bool matches)>& sink) const {
  const size_t bad = find_invalid_utf8(text);
  const std::string valid = bad == std::string_view::npos ? std::string() : with_control_characters(text, bad);
  const std::string_view subject = valid.empty() ? text : valid;
  BoundedSearch search(subject.size());
  const std::unique_ptr<OnigRegion, FreeRegion> region(allocated(onig_region_new()));

  size_t done = 0;                             // pieces reach up to here
  size_t last_match = std::string_view::npos;  // the end of the last match
  for (size_t from = 0; from <= subject.size();) {
    const int found = search.find(code_->compiled, subject, from, region.get());
    if (found == ONIG_MISMATCH) break;
    require<DataError>(found >= 0, "the split pattern \"", clipped(regex_, 200), "\" gave up at byte ", from,
                       " of a text of ", text.size(), " bytes: ", message_of(found),
                       "; break the text into shorter documents, or use a tokenizer with a simpler pattern");
    const auto first = static_cast<size_t>(region->beg[0]), last = static_cast<size_t>(region->end[0]);
    require<DataError>(first >= done && last >= first, "the split pattern \"", clipped(regex_, 200),
                       "\" matches backwards (\\K in a lookaround), which is not supported");
    if (first == last && last == last_match) {  // an empty match right behind a match: look one character further
      if (last == subject.size()) break;
      from = last + length_of_character(subject[last]);
      continue;
    }
    if (first > done) sink(text.substr(done, first - done), false);
    sink(text.substr(first, last - first), true);
    done = from = last_match = last;
  }
  if (done < text.size()) sink(text.substr(done), false);
}

}  // namespace witan

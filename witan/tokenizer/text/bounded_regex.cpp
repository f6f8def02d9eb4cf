#include "witan/tokenizer/text/bounded_regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <new>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/regex_splitter.h"

namespace witan {
namespace {

// A match may take as many retries as in the reference; a text as many as run for about a second, plus some per byte. A
// pattern whose retries take more than kStepsOfRetry steps gets proportionally fewer.
constexpr unsigned long kRetriesOfMatch = 10'000'000, kRetriesOfText = 10'000'000, kRetriesOfByte = 16;
constexpr unsigned long kStepsOfRetry = 8, kMostSteps = 1'000'000'000;
// Oniguruma does not report how many retries a search took. A search therefore starts with this limit and is repeated
// with four times as many; only the limits that did not suffice are charged to the budget.
constexpr unsigned long kRetriesOfSearch = 128;
constexpr unsigned kStackOfMatch = 6'000'000;  // backtracking points: 300 MiB

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

// Replaces bytes that are not valid UTF-8 by control characters; no byte changes its position.
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

// The length of the repetition {...} at the beginning of `text`, or 0, and its least number of repeats.
std::pair<size_t, unsigned long> repetition(std::string_view text) {
  const size_t end = text.find_first_not_of("0123456789,", 1);
  if (end == std::string_view::npos || end == 1 || text[end] != '}') return {0, 1};
  unsigned long times = 1;
  std::from_chars(text.data() + 1, text.data() + end, times);
  return {end + 1, std::clamp(times, 1UL, kMostSteps)};
}

// Estimates the most steps that a match takes between two backtracking points, for an expression from
// with_own_unicode(): an optional part leaves such a point, a part repeated {n} times need not. Each point causes one
// retry at most.
unsigned long steps_of_retry(std::string_view regex) {
  struct Group {
    unsigned long longest = 0, branch = 0, last = 0;  // branch; current branch; and its last part
    void add(unsigned long steps) { branch = std::min(branch + (last = steps), kMostSteps); }
    void end_branch() { longest = std::max(longest, std::exchange(branch, 0)), last = 0; }
  };
  std::vector<Group> groups(1);
  size_t brackets = 0;
  for (size_t at = 0, length = 1; at < regex.size(); at += length) {
    const char c = regex[at];
    length = 1;
    if (c == '\\') {
      length = 2;
      if (regex.substr(at + 1).starts_with("x{") || regex.substr(at + 1).starts_with("o{"))
        length = std::min(regex.find('}', at), regex.size()) + 1 - at;
      if (brackets == 0) groups.back().add(1);
    } else if (c == '[') {
      if (brackets++ == 0) groups.back().add(1);
    } else if (brackets > 0) {
      brackets -= c == ']';
    } else if (regex.substr(at).starts_with("(?#")) {
      length = std::min(regex.find(')', at), regex.size()) + 1 - at;
    } else if (c == '(') {
      length = regex.substr(at).starts_with("(?") ? 3 : 1;
      groups.emplace_back();
    } else if (c == ')' && groups.size() > 1) {
      groups.back().end_branch();
      const unsigned long steps = groups.back().longest;
      groups.pop_back();
      groups.back().add(steps);
    } else if (c == '|') {
      groups.back().end_branch();
    } else if (const auto [bounds, times] = c == '{' ? repetition(regex.substr(at)) : std::pair(0UL, 1UL); bounds > 0) {
      length = bounds;
      Group& group = groups.back();
      const unsigned long once = group.last, all = std::min(once * times, kMostSteps);
      group.branch = std::min(group.branch - std::min(once, group.branch) + all, kMostSteps);
      group.last = all;
    } else if (c != '?' && c != '*' && c != '+') {
      groups.back().add(1);
    }
  }
  groups.front().end_branch();
  return groups.front().longest;
}

// Searches one text within a budget that is the same on every machine.
class BoundedSearch {
 public:
  // The budget is divided by `cost`, the cost of a retry.
  BoundedSearch(size_t bytes, unsigned long cost)
      : first_(kRetriesOfSearch / cost + 2), left_(kRetriesOfText / cost + (kRetriesOfByte / cost + 2) * bytes) {
    onig_initialize_match_param(limits_.get());
    onig_set_match_stack_limit_size_of_match_param(limits_.get(), kStackOfMatch);
    onig_set_retry_limit_in_match_of_match_param(limits_.get(), kRetriesOfMatch / cost + 1);
  }
  int find(regex_t* regex, std::string_view text, size_t from, OnigRegion* region) {
    const OnigUChar *begin = bytes_of(text), *end = begin + text.size();
    for (unsigned long retries = std::min(first_, left_);; retries = std::min(4 * retries, left_)) {
      onig_set_retry_limit_in_search_of_match_param(limits_.get(), retries);
      const int found =
          onig_search_with_param(regex, begin, end, begin + from, end, region, ONIG_OPTION_NONE, limits_.get());
      if (found != ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER || retries >= left_) return found;
      left_ -= retries;
    }
  }

 private:
  std::unique_ptr<OnigMatchParam, FreeParameters> limits_{allocated(onig_new_match_param())};
  unsigned long first_, left_;
};

}  // namespace

struct BoundedRegex::Code {
  regex_t* compiled = nullptr;
  unsigned long cost = 1;  // of a retry
  ~Code() { onig_free(compiled); }
};

BoundedRegex::BoundedRegex(std::string regex, std::string name) : regex_(std::move(regex)), name_(std::move(name)) {
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
  require<DataError>(error == ONIG_NORMAL, name_, " \"", clipped(regex_, 200),
                     "\" does not compile: ", message_of(error, &info));
  code_->cost = std::max(steps_of_retry(translated) / kStepsOfRetry, 1UL);
}

BoundedRegex::~BoundedRegex() = default;
BoundedRegex::BoundedRegex(BoundedRegex&&) noexcept = default;

struct BoundedRegex::Search::State {
  std::string valid;
  std::string_view subject;
  BoundedSearch search;
  std::unique_ptr<OnigRegion, FreeRegion> region{allocated(onig_region_new())};
};

BoundedRegex::Search::Search(const BoundedRegex& regex, std::string_view text) : regex_(regex) {
  const size_t bad = find_invalid_utf8(text);
  std::string valid = bad == std::string_view::npos ? std::string() : with_control_characters(text, bad);
  state_ = std::unique_ptr<State>(new State{std::move(valid), text, {text.size(), regex.code_->cost}});
  if (!state_->valid.empty()) state_->subject = state_->valid;
}

BoundedRegex::Search::~Search() = default;

size_t BoundedRegex::Search::length_of_character(size_t at) const {
  const auto byte = static_cast<unsigned char>(state_->subject[at]);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

std::optional<BoundedRegex::Match> BoundedRegex::Search::find(size_t from) {
  const std::string_view subject = state_->subject;
  OnigRegion* const region = state_->region.get();
  const int found = state_->search.find(regex_.code_->compiled, subject, from, region);
  if (found == ONIG_MISMATCH) return {};
  require<DataError>(found >= 0, regex_.name_, " \"", clipped(regex_.regex_, 200), "\" exceeded its limits at byte ",
                     from, " of a text of ", subject.size(), " bytes: ", message_of(found),
                     "; use a simpler one, or shorter texts");
  Match match{static_cast<size_t>(region->beg[0]), static_cast<size_t>(region->end[0]), {}};
  require<DataError>(match.begin >= from && match.end >= match.begin, regex_.name_, " \"", clipped(regex_.regex_, 200),
                     "\" matches backwards (\\K in a lookaround), which is not supported");
  if (region->num_regs > 1 && region->beg[1] >= 0)
    match.group = {static_cast<size_t>(region->beg[1]), static_cast<size_t>(region->end[1])};
  return match;
}

}  // namespace witan

#include "witan/tokenizer/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <new>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr uint32_t kMatchLimit = 20'000'000;  // steps of one match: about a second
constexpr uint32_t kHeapLimitKiB = 256 * 1024;
constexpr size_t kStackStart = 32 * 1024, kStackLimit = 64 * 1024 * 1024;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <auto release>
struct Release {
  template <class T>
  void operator()(T* p) const {
    release(p);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Release<pcre2_jit_stack_free>>;

template <class Pointer>
Pointer allocated(Pointer p) {
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace

struct RegexSplitter::Code {
  pcre2_code* compiled = nullptr;
  ~Code() { pcre2_code_free(compiled); }
};

RegexSplitter::RegexSplitter(std::string regex) : regex_(std::move(regex)), code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  code_->compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex_.data()), regex_.size(), options, &error, &offset, nullptr);
  require<DataError>(code_->compiled, "the split pattern \"", regex_, "\" does not compile at character ", offset, ": ",
                     message_of(error));
  pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE);  // where there is no compiler the interpreter does it
}

RegexSplitter::~RegexSplitter() = default;
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;

void RegexSplitter::split(std::string_view text, const PieceSink& sink) const {
  const MatchData match = allocated(MatchData(pcre2_match_data_create_from_pattern(code_->compiled, nullptr)));
  const MatchContext context = allocated(MatchContext(pcre2_match_context_create(nullptr)));
  const JitStack stack = allocated(JitStack(pcre2_jit_stack_create(kStackStart, kStackLimit, nullptr)));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKiB);
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());

  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;
  while (done < text.size()) {
    const int found =
        pcre2_match(code_->compiled, subject, text.size(), done, PCRE2_NOTEMPTY, match.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    require<DataError>(found > 0, "the split pattern \"", regex_, "\" gave up at byte ", done, " of a text of ",
                       text.size(), " bytes: ", message_of(found),
                       "; break the text into shorter documents, or use a tokenizer with a simpler pattern");
    const size_t* range = pcre2_get_ovector_pointer(match.get());
    require<DataError>(range[0] >= done && range[1] > range[0], "the split pattern \"", regex_,
                       "\" matches backwards (\\K in a lookaround), which is not supported");
    if (range[0] > done) sink(text.substr(done, range[0] - done));
    sink(text.substr(range[0], range[1] - range[0]));
    done = range[1];
  }
  if (done < text.size()) sink(text.substr(done));
}

}  // namespace witan

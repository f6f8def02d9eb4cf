#include "witan/tokenizer/text/decoder.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

// The byte that a token stands for. Like the reference it accepts <0x0a>, and <0x+a>, as Rust parses numbers.
std::optional<char> byte_in(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);
  int value = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

// Converts each run of byte tokens to text, or to replacement characters if the bytes are not valid UTF-8.
std::vector<std::string> fall_back_to_bytes(const std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes) == std::string::npos)
      out.push_back(bytes);
    else
      out.insert(out.end(), bytes.size(), "\uFFFD");
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_in(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

std::string stripped(std::string_view token, const DecoderStep& step) {
  for (int64_t i = 0; i < step.start && token.starts_with(step.pattern); ++i) token.remove_prefix(step.pattern.size());
  for (int64_t i = 0; i < step.stop && token.ends_with(step.pattern); ++i) token.remove_suffix(step.pattern.size());
  return std::string(token);
}

// Removes the spaces that tokenizing puts before English punctuation and contractions.
std::string clean_up(std::string text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {{{" .", "."},
                                                                                            {" ?", "?"},
                                                                                            {" !", "!"},
                                                                                            {" ,", ","},
                                                                                            {" ' ", "'"},
                                                                                            {" n't", "n't"},
                                                                                            {" 'm", "'m"},
                                                                                            {" do not", " don't"},
                                                                                            {" 's", "'s"},
                                                                                            {" 've", "'ve"},
                                                                                            {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) text = replace_all(text, from, to);
  return text;
}

std::string concatenated(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

bool acts_on_one_token(const DecoderStep& step) {
  return step.kind != DecoderStep::Kind::byte_fallback && step.kind != DecoderStep::Kind::fuse;
}

// A token with a space before it no longer stands for a byte.
bool separates_tokens(const DecoderStep& step) {
  return step.kind == DecoderStep::Kind::word_piece || step.kind == DecoderStep::Kind::join;
}

}  // namespace

std::string Decoder::Step::apply(std::string_view token, bool first) const {
  switch (step.kind) {
    case DecoderStep::Kind::replace: {
      if (!regex) return replace_all(token, step.pattern, step.content);
      std::string out;
      regex->each(token, [&](std::string_view part, bool matches) { out += matches ? step.content : part; });
      return out;
    }
    case DecoderStep::Kind::strip:
      return stripped(token, step);
    case DecoderStep::Kind::metaspace:  // in the first token, encoding put it there
      return replace_all(token, step.pattern, first && step.prepends ? "" : " ");
    case DecoderStep::Kind::word_piece: {
      std::string out(token);
      if (!first)
        out = token.starts_with(step.pattern) ? std::string(token.substr(step.pattern.size())) : cat(" ", token);
      return step.cleanup ? clean_up(std::move(out)) : out;
    }
    case DecoderStep::Kind::join:
      return first ? std::string(token) : cat(" ", token);
    default:
      return std::string(token);
  }
}

Decoder::Decoder(const std::vector<DecoderStep>& steps) {
  for (const DecoderStep& step : steps) {
    std::shared_ptr<const RegexSplitter> regex;
    if (step.kind == DecoderStep::Kind::replace && step.regex)
      regex = std::make_shared<const RegexSplitter>(step.pattern);
    steps_.push_back({step, std::move(regex)});
  }
  auto at = std::find_if_not(steps.begin(), steps.end(), acts_on_one_token);
  if (at != steps.end() && at->kind == DecoderStep::Kind::byte_fallback &&
      std::none_of(steps.begin(), at, separates_tokens))
    ++at;
  if (at != steps.end() && at->kind == DecoderStep::Kind::fuse) {
    ++at;
    if (at != steps.end() && at->kind == DecoderStep::Kind::strip && at->pattern == " " && at->stop == 0) {
      leading_spaces_ = static_cast<size_t>(at->start);
      ++at;
    }
  }
  by_token_ = at == steps.end();
}

std::string Decoder::piece(std::string_view token, bool first) const {
  std::string text(token);
  for (const Step& step : steps_) {
    if (step.step.kind == DecoderStep::Kind::fuse) break;
    if (step.step.kind != DecoderStep::Kind::byte_fallback)
      text = step.apply(text, first);
    else if (const auto byte = byte_in(text))
      text = *byte;
  }
  return text;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) {
    if (step.step.kind == DecoderStep::Kind::byte_fallback)
      tokens = fall_back_to_bytes(tokens);
    else if (step.step.kind == DecoderStep::Kind::fuse)
      tokens = {concatenated(tokens)};
    else
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = step.apply(tokens[i], i == 0);
  }
  return concatenated(tokens);
}

}  // namespace witan

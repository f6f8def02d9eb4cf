#include "witan/tokenizer/chat/token_cursor.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::jinja {
namespace {

constexpr int kMostNesting = 64;  // of brackets and blocks

}  // namespace

TokenCursor::Nesting::Nesting(TokenCursor& cursor) : cursor_(cursor) {
  if (++cursor_.nesting_ > kMostNesting) cursor_.fail(cat("the template is nested deeper than ", kMostNesting));
}

void TokenCursor::fail(const std::string& why) const {
  throw DataError(cat(name_, ":", now().line, ": ", why));
}

const Token& TokenCursor::after() const {
  return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
}

Token TokenCursor::take() {
  Token token = now();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

std::string TokenCursor::shown() const {
  switch (now().kind) {
    case Token::Kind::output_end:
      return "}}";
    case Token::Kind::block_end:
      return "%}";
    case Token::Kind::end:
      return "the end of the template";
    default:
      return clipped(now().text);
  }
}

bool TokenCursor::skip(Token::Kind kind, std::string_view text) {
  const bool found = is(kind, text);
  if (found) take();
  return found;
}

void TokenCursor::expect_symbol(std::string_view text) {
  if (!skip_symbol(text)) fail(cat("expected ", text, " and found ", shown()));
}

void TokenCursor::expect_end(Token::Kind kind) {
  if (now().kind != kind) fail(cat("expected ", kind == Token::Kind::block_end ? "%}" : "}}", " and found ", shown()));
  take();
}

std::string TokenCursor::expect_name(const char* what) {
  if (now().kind != Token::Kind::name) fail(cat("expected ", what, " and found ", shown()));
  return take().text;
}

}  // namespace witan::jinja

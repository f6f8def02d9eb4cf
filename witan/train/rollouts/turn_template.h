// The tokens between two answers of a conversation that is sampled: the end of an answer's turn, further messages, and
// the beginning of the next answer, as the run's chat template writes them. Answers stay the tokens that were sampled;
// only what follows one is rendered, behind a short conversation that stands for the real one, and tokenized.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/corpus/conversations.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

class TurnTemplate {
 public:
  // Throws ConfigError for a template that neither shows an answer as it was sampled once the result of a tool follows
  // nor once a user's message does: the model would be trained on conversations that it never meets later.
  TurnTemplate(std::shared_ptr<const ConversationFormat> format, std::shared_ptr<const Tokenizer> tokenizer);

  struct Turn {
    std::vector<int32_t> tokens;
    bool rewritten = false;  // the template would show this answer otherwise than it was sampled
  };
  // What follows an answer with this text, which an end token has ended or (`by_token` = false) a stop string.
  // `messages`: at least one, JSON objects as normal_message() has them. If the first is the assistant's, it is the
  // answer as the template is to see it, with tool_calls; its tokens are still those that were sampled. Throws
  // DataError if the template refuses the messages, or writes what comes before them differently because of them.
  Turn next(const std::string& answer, bool by_token, std::vector<ChatMessage> messages) const;

 private:
  // Where the turn of an answer ends in a text: at the special token that ends it, and behind that. Equal without one.
  struct End {
    size_t begin, end;
  };

  RenderedChat render(const ChatMessage& answer, const std::vector<ChatMessage>& messages) const;
  std::string_view special_token_at(std::string_view text) const;
  End end_of_plain(std::string_view text) const;
  End end_of_given(const ChatMessage& answer, std::string_view text) const;
  bool shows(const std::string& answer, const ChatMessage& as, const std::vector<ChatMessage>& messages) const;
  std::string refusal(const std::string& role) const;

  std::shared_ptr<const ConversationFormat> format_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string prompt_;                          // the short conversation up to its answer
  std::map<std::string, std::string> refused_;  // roles that no answer may be followed by, and why
};

}  // namespace witan

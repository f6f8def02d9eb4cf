// The chat template of a run's model, which turns a conversation into tokens.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/generate/generation_batch.h"
#include "witan/tokenizer/chat/chat_template.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {

inline constexpr const char* kContentSpecialTokensHelp =
    "Special tokens that messages spell are control tokens, not text, as transformers has it";

class ChatFormat {
 public:
  // The template of `file`, or the run's if `file` is empty. Special tokens spelled in messages are plain text unless
  // `content_special_tokens` is set or the run was trained with it. Throws DataError, CorruptionError, IoError.
  static std::optional<ChatFormat> open(const TrainedRun& run, const std::string& file, bool content_special_tokens);
  // Says why there is no template, and what to do.
  static std::string missing(const TrainedRun& run);

  // The prompt, up to where the model's answer begins. `tools` and `variables` are as in ChatTemplateOptions. Throw
  // DataError if the template refuses the messages; encode() also if the template writes nothing.
  std::string render(std::span<const ChatMessage> messages, const std::string& tools = {},
                     const std::string& variables = {}) const;
  std::vector<int32_t> encode(std::span<const ChatMessage> messages, const std::string& tools = {},
                              const std::string& variables = {}) const;
  // Nothing if there are certainly more than `most_tokens`, which is decided without encoding the whole prompt.
  std::optional<std::vector<int32_t>> encode_within(int64_t most_tokens, std::span<const ChatMessage> messages,
                                                    const std::string& tools = {},
                                                    const std::string& variables = {}) const;
  // Adds the tokens that end an answer: the one that the model's folder names, and those the template writes after one.
  void add_stop_tokens(std::vector<int32_t>& tokens) const;

 private:
  ChatFormat(FoundChatTemplate found, Tokenizer tokenizer, bool content_special_tokens)
      : found_(std::move(found)), tokenizer_(std::move(tokenizer)), content_special_tokens_(content_special_tokens) {}

  RenderedChat prompt(std::span<const ChatMessage> messages, const std::string& tools,
                      const std::string& variables) const;
  std::vector<int32_t> encode(RenderedChat rendered) const;

  FoundChatTemplate found_;
  Tokenizer tokenizer_;
  bool content_special_tokens_;
};

}  // namespace witan::cli

// How a run's model is talked to: its chat template, which makes tokens of a conversation.
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
  // The template of `file` or, without one, the run's. Special tokens that messages spell are text unless
  // `content_special_tokens`, or unless the run was trained with it. Throws DataError, CorruptionError, IoError.
  static std::optional<ChatFormat> open(const TrainedRun& run, const std::string& file, bool content_special_tokens);
  // Why there is none, and the way out.
  static std::string missing(const TrainedRun& run);

  // Up to where the model's answer begins. `tools` and `variables` are those of ChatTemplateOptions. Throw DataError
  // for what the template refuses, and encode() if it writes nothing.
  std::string render(std::span<const ChatMessage> messages, const std::string& tools = {},
                     const std::string& variables = {}) const;
  std::vector<int32_t> encode(std::span<const ChatMessage> messages, const std::string& tools = {},
                              const std::string& variables = {}) const;
  // Nothing if there are surely more than `most_tokens`, which is found without encoding them all.
  std::optional<std::vector<int32_t>> encode_within(int64_t most_tokens, std::span<const ChatMessage> messages,
                                                    const std::string& tools = {},
                                                    const std::string& variables = {}) const;
  // Adds the tokens that end an answer: the one that the model's folder names, and what the template writes behind one.
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

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/base64.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/models/merge_table.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 24;

struct Special {
  int32_t id;
  std::string text;
};
using Specials = std::vector<Special>;

struct Published {
  size_t ranks;
  std::string_view pattern;
  bool nfc;
  Specials (*specials)();
};

Specials one_end(int32_t id) {
  return {{id, "<|endoftext|>"}};
}

void put_next(Specials& out, std::string text) {
  out.push_back({out.back().id + 1, std::move(text)});
}

Specials cl100k_specials() {
  return {{100257, "<|endoftext|>"},
          {100258, "<|fim_prefix|>"},
          {100259, "<|fim_middle|>"},
          {100260, "<|fim_suffix|>"},
          {100276, "<|endofprompt|>"}};
}

Specials qwen_specials() {
  Specials out = {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}};
  for (int i = 0; i < 205; ++i) put_next(out, cat("<|extra_", i, "|>"));
  return out;
}

Specials qwen35_specials() {
  static constexpr std::array<const char*, 33> kNamed = {"<|endoftext|>",
                                                         "<|im_start|>",
                                                         "<|im_end|>",
                                                         "<|object_ref_start|>",
                                                         "<|object_ref_end|>",
                                                         "<|box_start|>",
                                                         "<|box_end|>",
                                                         "<|quad_start|>",
                                                         "<|quad_end|>",
                                                         "<|vision_start|>",
                                                         "<|vision_end|>",
                                                         "<|vision_pad|>",
                                                         "<|image_pad|>",
                                                         "<|video_pad|>",
                                                         "<tool_call>",
                                                         "</tool_call>",
                                                         "<|fim_prefix|>",
                                                         "<|fim_middle|>",
                                                         "<|fim_suffix|>",
                                                         "<|fim_pad|>",
                                                         "<|repo_name|>",
                                                         "<|file_sep|>",
                                                         "<tool_response>",
                                                         "</tool_response>",
                                                         "<think>",
                                                         "</think>",
                                                         "<|audio_start|>",
                                                         "<|audio_end|>",
                                                         "<tts_pad>",
                                                         "<tts_text_bos>",
                                                         "<tts_text_eod>",
                                                         "<tts_text_bos_single>",
                                                         "<|audio_pad|>"};
  Specials out;
  for (const char* name : kNamed) out.push_back({248044 + static_cast<int32_t>(out.size()), name});
  return out;
}

// https://github.com/meta-llama/llama-models/blob/main/models/llama3/tokenizer.py
Specials llama3_specials() {
  static constexpr std::array<const char*, 12> kNamed = {"<|begin_of_text|>",
                                                         "<|end_of_text|>",
                                                         "<|reserved_special_token_0|>",
                                                         "<|reserved_special_token_1|>",
                                                         "<|finetune_right_pad_id|>",
                                                         "<|step_id|>",
                                                         "<|start_header_id|>",
                                                         "<|end_header_id|>",
                                                         "<|eom_id|>",
                                                         "<|eot_id|>",
                                                         "<|python_tag|>",
                                                         "<|image|>"};
  Specials out;
  for (const char* name : kNamed) out.push_back({128000 + static_cast<int32_t>(out.size()), name});
  for (int i = 2; out.size() < 256; ++i) put_next(out, cat("<|reserved_special_token_", i, "|>"));
  return out;
}

// https://github.com/meta-llama/llama-models/blob/main/models/llama4/tokenizer.py
Specials llama4_specials() {
  static constexpr std::array<const char*, 19> kText = {"<|begin_of_text|>",
                                                        "<|end_of_text|>",
                                                        "<|fim_prefix|>",
                                                        "<|fim_middle|>",
                                                        "<|fim_suffix|>",
                                                        "<|header_start|>",
                                                        "<|header_end|>",
                                                        "<|eom|>",
                                                        "<|eot|>",
                                                        "<|step|>",
                                                        "<|text_post_train_reserved_special_token_0|>",
                                                        "<|text_post_train_reserved_special_token_1|>",
                                                        "<|text_post_train_reserved_special_token_2|>",
                                                        "<|text_post_train_reserved_special_token_3|>",
                                                        "<|text_post_train_reserved_special_token_4|>",
                                                        "<|text_post_train_reserved_special_token_5|>",
                                                        "<|python_start|>",
                                                        "<|python_end|>",
                                                        "<|finetune_right_pad|>"};
  static constexpr std::array<const char*, 13> kVision = {"<|image_start|>",
                                                          "<|image_end|>",
                                                          "<|vision_reserved_special_token_0|>",
                                                          "<|vision_reserved_special_token_1|>",
                                                          "<|tile_x_separator|>",
                                                          "<|tile_y_separator|>",
                                                          "<|vision_reserved_special_token_2|>",
                                                          "<|vision_reserved_special_token_3|>",
                                                          "<|vision_reserved_special_token_4|>",
                                                          "<|vision_reserved_special_token_5|>",
                                                          "<|image|>",
                                                          "<|vision_reserved_special_token_6|>",
                                                          "<|patch|>"};
  Specials out;
  for (const char* name : kText) out.push_back({200000 + static_cast<int32_t>(out.size()), name});
  for (int i = 8; i < 69; ++i) put_next(out, cat("<|text_post_train_reserved_special_token_", i, "|>"));
  for (const char* name : kVision) put_next(out, name);
  for (int i = 7; i < 1048; ++i) put_next(out, cat("<|vision_reserved_special_token_", i, "|>"));
  for (int i = 0; i < 8; ++i) put_next(out, cat("<|reasoning_reserved_special_token_", i, "|>"));
  put_next(out, "<|reasoning_thinking_start|>");
  put_next(out, "<|reasoning_thinking_end|>");
  for (int i = 0; out.size() < 2048; ++i) put_next(out, cat("<|reserved_special_token_", i, "|>"));
  return out;
}

constexpr std::array<Published, 9> kPublished = {{
    {50256, kGpt2Pattern, false, [] { return one_end(50256); }},
    {50257, kGpt2Pattern, false, [] { return one_end(50257); }},
    {50280, kGpt2Pattern, false, [] { return one_end(50256); }},
    {100256, kLlama3Pattern, false, cl100k_specials},
    {128000, kLlama3Pattern, false, llama3_specials},
    {151643, kQwen2Pattern, true, qwen_specials},
    {199998, kO200kPattern, false,
     [] {
       return Specials{{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}};
     }},
    {200000, kO200kPattern, false, llama4_specials},
    {248044, kQwen35Pattern, true, qwen35_specials},
}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kEncodings = {{{"gpt2", kGpt2Pattern},
                                                                                      {"cl100k", kLlama3Pattern},
                                                                                      {"llama3", kLlama3Pattern},
                                                                                      {"qwen2", kQwen2Pattern},
                                                                                      {"qwen3.5", kQwen35Pattern},
                                                                                      {"o200k", kO200kPattern},
                                                                                      {"tekken", kTekkenPattern},
                                                                                      {"kimi", kKimiPattern}}};

// The bytes and the id of a line.
std::optional<std::pair<std::string, int32_t>> parse_rank(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return std::nullopt;
  auto bytes = line.substr(0, space) == "=" ? std::string() : from_base64(line.substr(0, space));
  const std::string_view number = line.substr(space + 1);
  int32_t id = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), id);
  if (!bytes || error != std::errc() || end != number.data() + number.size() || id < 0 || id >= kMostRanks)
    return std::nullopt;
  return std::pair(*std::move(bytes), id);
}

std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

std::string split_pattern_named(std::string_view name) {
  std::string names;
  for (const auto& [known, pattern] : kEncodings) {
    if (known == name) return std::string(pattern);
    names += cat(names.empty() ? "" : ", ", known);
  }
  throw DataError(cat("there is no split pattern \"", clipped(name), "\": give one of ", names));
}

bool looks_like_ranks(std::string_view text) {
  return parse_rank(take_line(text)).has_value();
}

TokenizerSpec parse_tiktoken(std::string_view text, std::string_view source, std::string_view pattern) {
  // Published files skip few ids, those of special tokens. Without this bound a file of one line could take memory for
  // millions of ids.
  const auto lines = static_cast<size_t>(std::ranges::count(text, '\n')) + 1;
  const size_t most = 2 * lines + 65536;
  TokenizerSpec spec;
  std::vector<int32_t> ids;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    auto rank = parse_rank(line);
    require<CorruptionError>(rank.has_value(), source, ": line ", number, ", \"", clipped(line),
                             "\", is not a token in base64, a space and an id from 0 to ", kMostRanks - 1,
                             ": download the file again");
    const auto id = static_cast<size_t>(rank->second);
    require<CorruptionError>(id < most, source, ": line ", number, " gives the id ", id, " in a file of ", lines,
                             " lines: download the file again");
    if (id >= spec.tokens.size()) spec.tokens.resize(id + 1);
    require<CorruptionError>(spec.tokens[id].empty() && rank->second != spec.empty_token, source, ": line ", number,
                             " gives the id ", id, " again");
    require<CorruptionError>(!rank->first.empty() || !spec.empty_token, source, ": line ", number,
                             " gives the empty token again");
    if (rank->first.empty())
      spec.empty_token = rank->second;  // Whisper's last rank
    else
      ids.push_back(static_cast<int32_t>(id));
    spec.tokens[id] = std::move(rank->first);
  }
  const size_t ranks = ids.size() + spec.empty_token.has_value();
  const auto published =
      std::find_if(kPublished.begin(), kPublished.end(), [&](const Published& p) { return p.ranks == ranks; });
  require<DataError>(!pattern.empty() || published != kPublished.end(), source, ": a file of ", ranks,
                     " ranks is not a known one, and rank files do not contain their split pattern: name it, as in "
                     "--tokenizer ",
                     source, "#cl100k (gpt2, cl100k, llama3, qwen2, qwen3.5, o200k, tekken or kimi)");
  if (!pattern.empty()) {
    spec.patterns = {split_pattern_named(pattern)};
  } else {
    spec.patterns = {std::string(published->pattern)};
    if (published->nfc) spec.normalizers.emplace_back();
    for (const Special& special : published->specials()) {
      const auto id = static_cast<size_t>(special.id);
      if (id >= spec.tokens.size()) spec.tokens.resize(id + 1);
      require<CorruptionError>(spec.tokens[id].empty(), source, ": the id ", id, " is used, but belongs to ",
                               special.text, ": download the file again");
      spec.tokens[id] = special.text;
      spec.added.push_back({.id = special.id, .text = special.text, .in_model = false});
    }
  }
  complete_ranks(spec, ids, source);
  return spec;
}

void complete_ranks(TokenizerSpec& spec, const std::vector<int32_t>& ids, std::string_view source) {
  TokenMap known(spec.tokens);
  for (const int32_t id : ids)
    require<CorruptionError>(known.insert(id), source, ": the token ", id, ", \"",
                             clipped(spec.tokens[static_cast<size_t>(id)]), "\", appears twice");
  std::vector<uint32_t> ranks(spec.tokens.size());
  for (size_t id = 0; id < ranks.size(); ++id) ranks[id] = static_cast<uint32_t>(id);
  add_merges(spec, ids, known, ranks, false);
  spec.ignore_merges = true;
}

}  // namespace witan

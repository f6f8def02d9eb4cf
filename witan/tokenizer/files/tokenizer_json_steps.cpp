#include <map>
#include <vector>

#include "witan/tokenizer/files/base64.h"
#include "witan/tokenizer/files/tokenizer_json_parts.h"
#include "witan/tokenizer/text/scanners.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {

std::string bytes_in(const JsonNode& node) {
  auto bytes = from_base64(node.text());
  if (!bytes) node.corrupt("is not base64");
  return *std::move(bytes);
}

namespace {

// The pattern of a Split or Replace; `regex` is set to whether it is a regular expression.
std::string pattern_in(const JsonNode& node, bool& regex) {
  const Json& pattern = node["pattern"].object();
  regex = pattern.contains("Regex");
  if (!regex && !pattern.contains("String")) node["pattern"].unsupported("that is neither a Regex nor a String");
  const std::string text = node["pattern"][regex ? "Regex" : "String"].text();
  if (text.empty()) node["pattern"].corrupt("is empty");
  return text;
}

}  // namespace

void read_normalizer(const JsonNode& node, TokenizerSpec& spec) {
  using Kind = NormalizerStep::Kind;
  if (node.is_null()) return;
  const std::string type = node.type();
  static const std::map<std::string, Kind, std::less<>> kPlain = {{"NFC", Kind::nfc},
                                                                  {"NFD", Kind::nfd},
                                                                  {"NFKC", Kind::nfkc},
                                                                  {"NFKD", Kind::nfkd},
                                                                  {"Lowercase", Kind::lowercase},
                                                                  {"StripAccents", Kind::strip_accents}};
  NormalizerStep step;
  if (const auto plain = kPlain.find(type); plain != kPlain.end()) {
    step.kind = plain->second;
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.left = node["strip_left"].flag(true);
    step.right = node["strip_right"].flag(true);
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.content = node["prepend"].text();
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern = pattern_in(node, step.regex);
    step.content = node["content"].text();
  } else if (type == "Precompiled") {
    step.kind = Kind::precompiled;
    step.content = bytes_in(node["precompiled_charsmap"]);
  } else if (type == "BertNormalizer") {
    step.kind = Kind::bert;
    step.clean = node["clean_text"].flag(true);
    step.chinese = node["handle_chinese_chars"].flag(true);
    step.lower = node["lowercase"].flag(true);
    step.accents = node["strip_accents"].flag(step.lower);
  } else if (type == "Sequence") {
    const JsonNode parts = node["normalizers"];
    for (size_t i = 0; i < parts.array().size(); ++i) read_normalizer(parts.at(i), spec);
    return;
  } else {
    node.unsupported("of type \"", type, "\"");
  }
  spec.normalizers.push_back(std::move(step));
}

namespace {

SplitBehavior behavior_in(const JsonNode& node) {
  static const std::map<std::string, SplitBehavior, std::less<>> kBehaviors = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"Contiguous", SplitBehavior::contiguous},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next}};
  const auto behavior = kBehaviors.find(node.text());
  if (behavior == kBehaviors.end()) node.unsupported("\"", node.text(), "\"");
  return behavior->second;
}

SplitStep read_split(const JsonNode& node) {
  bool regex = false;
  SplitStep step(pattern_in(node, regex));
  if (!regex) step.kind = SplitStep::Kind::literal;
  step.behavior = behavior_in(node["behavior"]);
  step.invert = node["invert"].flag(false);
  // If the matches cover the whole text, there is nothing between them to remove.
  const bool covers = regex && scanner_for(step.pattern) && step.pattern.ends_with("|\\s+");
  if (step.behavior == SplitBehavior::isolated || (covers && step.invert && step.behavior == SplitBehavior::removed)) {
    step.behavior = SplitBehavior::isolated;  // invert makes no difference to it
    step.invert = false;
  }
  return step;
}

// "always", "first" or "never"; older files have add_prefix_space instead.
PrependScheme prepend_scheme(const JsonNode& node) {
  const JsonNode scheme = node["prepend_scheme"];
  if (scheme.is_null()) return node["add_prefix_space"].flag(true) ? PrependScheme::always : PrependScheme::never;
  if (scheme.text() == "always") return PrependScheme::always;
  if (scheme.text() == "first") return PrependScheme::first;
  if (scheme.text() != "never") scheme.unsupported("\"", scheme.text(), "\"");
  return PrependScheme::never;
}

std::string character_in(const JsonNode& node) {
  const std::string& text = node.text();
  if (text.empty() || character_length(text) != text.size()) node.corrupt("must be one character");
  return text;
}

std::string replacement_in(const JsonNode& node) {
  return character_in(node["replacement"]);
}

SplitStep read_step(const JsonNode& node) {
  const std::string type = node.type();
  if (type == "Split") return read_split(node);
  if (type == "Digits") return std::string(node["individual_digits"].flag(false) ? kDigitPattern : kDigitRunPattern);
  if (type == "Metaspace")
    return SplitStep::metaspace(replacement_in(node), prepend_scheme(node), node["split"].flag(true));
  if (type == "Whitespace") return SplitStep::of(SplitStep::Kind::words);
  if (type == "BertPreTokenizer") return SplitStep::of(SplitStep::Kind::bert);
  if (type == "Punctuation") {
    SplitStep step = SplitStep::of(SplitStep::Kind::punctuation);
    if (!node["behavior"].is_null()) step.behavior = behavior_in(node["behavior"]);
    return step;
  }
  if (type == "WhitespaceSplit") {
    SplitStep step("\\s+");
    step.behavior = SplitBehavior::removed;
    return step;
  }
  node.unsupported("of type \"", type, "\"");
}

}  // namespace

void read_pretokenizer(const JsonNode& node, bool bytes_expected, TokenizerSpec& spec) {
  if (node.is_null()) {
    if (bytes_expected) node.unsupported("null");
    spec.byte_level = false;
    return;
  }
  std::vector<JsonNode> steps;
  if (node.type() == "Sequence") {
    const JsonNode parts = node["pretokenizers"];
    for (size_t i = 0; i < parts.array().size(); ++i) steps.push_back(parts.at(i));
  } else {
    steps.push_back(node);
  }
  spec.byte_level = !steps.empty() && steps.back().type() == "ByteLevel";
  if (!spec.byte_level && bytes_expected) node.unsupported("that does not end with ByteLevel");
  for (size_t i = 0; i + spec.byte_level < steps.size(); ++i) spec.patterns.push_back(read_step(steps[i]));
  if (!spec.byte_level) return;
  const JsonNode& bytes = steps.back();
  spec.prefix_space = bytes["add_prefix_space"].flag(true);
  if (spec.prefix_space && steps.size() > 1) bytes["add_prefix_space"].unsupported("true after other steps");
  if (bytes["use_regex"].flag(true)) spec.patterns.emplace_back(std::string(kGpt2Pattern));
}

namespace {

int64_t count_in(const JsonNode& node) {
  const Json& count = node.json();
  if (!count.is_number_unsigned() || count.get<uint64_t>() > 64) node.corrupt("must be a number from 0 to 64");
  return count.get<int64_t>();
}

void read_decoder_step(const JsonNode& node, std::vector<DecoderStep>& steps) {
  using Kind = DecoderStep::Kind;
  const std::string type = node.type();
  DecoderStep step;
  if (type == "Sequence") {
    const JsonNode parts = node["decoders"];
    for (size_t i = 0; i < parts.array().size(); ++i) read_decoder_step(parts.at(i), steps);
    return;
  }
  if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Metaspace") {
    step = {.kind = Kind::metaspace,
            .pattern = replacement_in(node),
            .prepends = prepend_scheme(node) != PrependScheme::never};
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern = pattern_in(node, step.regex);
    step.content = node["content"].text();
  } else if (type == "Strip") {
    step = {.kind = Kind::strip,
            .pattern = character_in(node["content"]),
            .start = count_in(node["start"]),
            .stop = count_in(node["stop"])};
  } else if (type == "WordPiece") {
    step = {.kind = Kind::word_piece, .pattern = node["prefix"].text(), .cleanup = node["cleanup"].flag(true)};
  } else if (type != "Fuse") {
    node.unsupported("of type \"", type, "\"");
  }
  steps.push_back(std::move(step));
}

// The only member of a sequence of decoders, else the node itself.
JsonNode only_part(JsonNode node) {
  while (!node.is_null() && node.type() == "Sequence" && node["decoders"].array().size() == 1)
    node = node["decoders"].at(0);
  return node;
}

}  // namespace

bool decodes_bytes(const JsonNode& node) {
  const JsonNode part = only_part(node);
  return !part.is_null() && part.type() == "ByteLevel";
}

void read_decoder(const JsonNode& node, TokenizerSpec& spec) {
  if (spec.byte_level) {
    if (!node.is_null() && !decodes_bytes(node)) node.unsupported("other than ByteLevel for a vocabulary of bytes");
    return;
  }
  if (node.is_null())
    spec.decoding.push_back({.kind = DecoderStep::Kind::join});
  else
    read_decoder_step(node, spec.decoding);
  spec.decoder = node.json().dump();
}

}  // namespace witan

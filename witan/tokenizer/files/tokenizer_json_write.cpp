// Writes tokenizer.json; tokenizer_json.cpp reads it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/tokenizer/files/base64.h"
#include "witan/tokenizer/files/serde_number.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/models/sentencepiece.h"
#include "witan/tokenizer/text/byte_alphabet.h"
#include "witan/tokenizer/text/scanners.h"

namespace witan {
namespace {

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

// The keys of the vocabulary: added tokens literally, the others in the byte alphabet if the vocabulary is byte-level.
class Keys {
 public:
  explicit Keys(const TokenizerSpec& spec) : spec_(&spec), added_(spec.tokens.size()) {
    for (const AddedToken& token : spec.added) added_[static_cast<size_t>(token.id)] = &token;
  }
  bool in_model(size_t id) const {
    return (!spec_->tokens[id].empty() || spec_->empty_token == static_cast<int32_t>(id)) &&
           (!added_[id] || added_[id]->in_model);
  }
  std::string operator()(size_t id) const {
    if (added_[id]) return added_[id]->text;
    return spec_->byte_level ? to_byte_alphabet(spec_->tokens[id]) : spec_->tokens[id];
  }

 private:
  const TokenizerSpec* spec_;
  std::vector<const AddedToken*> added_;
};

const char* name_of(SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::isolated:
      return "Isolated";
    case SplitBehavior::removed:
      return "Removed";
    case SplitBehavior::contiguous:
      return "Contiguous";
    case SplitBehavior::merged_with_previous:
      return "MergedWithPrevious";
    case SplitBehavior::merged_with_next:
      return "MergedWithNext";
  }
  return "";
}

const char* name_of(PrependScheme scheme) {
  return scheme == PrependScheme::always ? "always" : scheme == PrependScheme::first ? "first" : "never";
}

Json sequence_of(const char* key, Json steps) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {key, std::move(steps)}};
}

Json json_of(const NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
    case Kind::nfc:
      return {{"type", "NFC"}};
    case Kind::nfd:
      return {{"type", "NFD"}};
    case Kind::nfkc:
      return {{"type", "NFKC"}};
    case Kind::nfkd:
      return {{"type", "NFKD"}};
    case Kind::lowercase:
      return {{"type", "Lowercase"}};
    case Kind::strip:
      return {{"type", "Strip"}, {"strip_left", step.left}, {"strip_right", step.right}};
    case Kind::prepend:
      return {{"type", "Prepend"}, {"prepend", step.content}};
    case Kind::replace:
      return {{"type", "Replace"},
              {"pattern", {{step.regex ? "Regex" : "String", step.pattern}}},
              {"content", step.content}};
    case Kind::strip_accents:
      return {{"type", "StripAccents"}};
    case Kind::bert:
      return {{"type", "BertNormalizer"},
              {"clean_text", step.clean},
              {"handle_chinese_chars", step.chinese},
              {"strip_accents", step.accents},
              {"lowercase", step.lower}};
    case Kind::precompiled:
      return {{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(step.content)}};
  }
  return nullptr;
}

std::string normalizer_json(const TokenizerSpec& spec) {
  if (spec.normalizers == std::vector{NormalizerStep{}}) return "{\"type\": \"NFC\"}";
  Json steps = Json::array();
  for (const NormalizerStep& step : spec.normalizers) steps.push_back(json_of(step));
  return sequence_of("normalizers", steps).dump();
}

Json json_of(const SplitStep& step) {
  if (step.kind == SplitStep::Kind::metaspace)
    return {{"type", "Metaspace"},
            {"replacement", step.pattern},
            {"prepend_scheme", name_of(step.prepend)},
            {"split", step.cut}};
  if (step.kind == SplitStep::Kind::words) return {{"type", "Whitespace"}};
  if (step.kind == SplitStep::Kind::bert) return {{"type", "BertPreTokenizer"}};
  if (step.kind == SplitStep::Kind::punctuation) return {{"type", "Punctuation"}, {"behavior", name_of(step.behavior)}};
  return {{"type", "Split"},
          {"pattern", {{step.kind == SplitStep::Kind::literal ? "String" : "Regex", step.pattern}}},
          {"behavior", name_of(step.behavior)},
          {"invert", step.invert}};
}

std::string pretokenizer_json(const TokenizerSpec& spec) {
  const bool plain =
      spec.byte_level && (spec.patterns.empty() || spec.patterns == std::vector{SplitStep(std::string(kGpt2Pattern))});
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", spec.prefix_space},
                      {"trim_offsets", true},
                      {"use_regex", plain && !spec.patterns.empty()}};
  if (plain) return bytes.dump();
  Json steps = Json::array();
  for (const SplitStep& step : spec.patterns) steps.push_back(json_of(step));
  if (spec.byte_level) steps.push_back(bytes);
  return sequence_of("pretokenizers", steps).dump();
}

std::string added_tokens_json(const TokenizerSpec& spec) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string out;
  for (const AddedToken& token : spec.added)
    out += cat(out.empty() ? "\n    " : ",\n    ", "{\"id\": ", token.id, ", \"content\": ", quoted(token.text),
               ", \"single_word\": ", flag(token.single_word), ", \"lstrip\": ", flag(token.lstrip),
               ", \"rstrip\": ", flag(token.rstrip), ", \"normalized\": ", flag(token.normalized),
               ", \"special\": ", flag(token.special), "}");
  return out;
}

// Settings for which the format has no key (docs/formats/tokenizer_json.md). Other readers ignore them.
std::string extension_json(const TokenizerSpec& spec) {
  if (!spec.sentencepiece.empty())
    return cat(",\n    \"witan\": {\"sentencepiece\": \"", to_base64(spec.sentencepiece), "\"}");
  if (spec.merge_ranks.empty()) return "";
  for (size_t i = 0; i < spec.merges.size(); ++i)
    require<DataError>(spec.merge_ranks[i] == static_cast<uint32_t>(spec.merges[i].result),
                       "a merge whose rank is not the id of its result cannot be written to a tokenizer.json: keep the "
                       "tokenizer's original file");
  return ",\n    \"witan\": {\"merge_ranks\": \"result\"}";
}

std::string vocab_json(const TokenizerSpec& spec) {
  const Keys key(spec);
  std::string out = "\"vocab\": {";
  const char* separator = "\n      ";
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!key.in_model(id)) continue;
    out += cat(separator, quoted(key(id)), ": ", id);
    separator = ",\n      ";
  }
  return out + "\n    }";
}

std::string bpe_json(const TokenizerSpec& spec) {
  const Keys key(spec);
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string out =
      cat("{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ", spec.unk_token,
          ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    "
          "\"fuse_unk\": ",
          flag(spec.fuse_unk), ",\n    \"byte_fallback\": ", flag(spec.byte_fallback),
          ",\n    \"ignore_merges\": ", flag(spec.ignore_merges), extension_json(spec), ",\n    \"vocab\": {");
  const char* separator = "\n      ";
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!key.in_model(id)) continue;
    out += cat(separator, quoted(key(id)), ": ", id);
    separator = ",\n      ";
  }
  out += "\n    },\n    \"merges\": [";
  separator = "\n      ";
  for (const Merge& merge : spec.merges) {
    const std::string left = key(static_cast<size_t>(merge.left)), right = key(static_cast<size_t>(merge.right));
    // No token in the byte alphabet contains a space, so the form with one space, which every reader knows, is safe.
    const bool pair = left.find(' ') != std::string::npos || right.find(' ') != std::string::npos;
    out += cat(separator, pair ? cat("[", quoted(left), ", ", quoted(right), "]") : quoted(cat(left, " ", right)));
    separator = ",\n      ";
  }
  return out + "\n    ]\n  }";
}

std::string unigram_json(const TokenizerSpec& spec) {
  std::string out = cat(
      "{\n    \"type\": \"Unigram\",\n    \"unk_id\": ", spec.unk ? std::to_string(*spec.unk) : "null",
      ",\n    \"byte_fallback\": ", spec.byte_fallback ? "true" : "false", extension_json(spec), ",\n    \"vocab\": [");
  const char* separator = "\n      ";
  for (size_t id = 0; id < spec.scores.size(); ++id) {
    out += cat(separator, "[", quoted(spec.tokens[id]), ", ", write_serde_number(spec.scores[id]), "]");
    separator = ",\n      ";
  }
  return out + "\n    ]\n  }";
}

std::string word_json(const TokenizerSpec& spec) {
  const bool pieces = spec.model == TokenizerSpec::Model::word_piece;
  std::string out =
      cat("{\n    \"type\": \"", pieces ? "WordPiece" : "WordLevel", "\",\n    \"unk_token\": ", spec.unk_token);
  if (pieces)
    out += cat(",\n    \"continuing_subword_prefix\": ", quoted(spec.word_prefix),
               ",\n    \"max_input_chars_per_word\": ", spec.longest_word);
  return cat(out, ",\n    ", vocab_json(spec), "\n  }");
}

std::string model_json(const TokenizerSpec& spec) {
  if (spec.model == TokenizerSpec::Model::bpe) return bpe_json(spec);
  return spec.model == TokenizerSpec::Model::unigram ? unigram_json(spec) : word_json(spec);
}

}  // namespace

std::string write_tokenizer_json(const TokenizerSpec& given) {
  const TokenizerSpec other = given.sentencepiece.empty() ? TokenizerSpec() : hugging_face_form(given);
  const TokenizerSpec& spec = given.sentencepiece.empty() ? given : other;
  const std::string decoder = spec.byte_level ? "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                                                "\"trim_offsets\": true, \"use_regex\": true}"
                                              : spec.decoder;
  return cat("{\n  \"version\": \"1.0\",\n  \"truncation\": ", spec.truncation, ",\n  \"padding\": ", spec.padding,
             ",\n  \"added_tokens\": [", added_tokens_json(spec), "\n  ],\n  \"normalizer\": ", normalizer_json(spec),
             ",\n  \"pre_tokenizer\": ", pretokenizer_json(spec), ",\n  \"post_processor\": ", spec.post_processor,
             ",\n  \"decoder\": ", decoder, ",\n  \"model\": ", model_json(spec), "\n}\n");
}

}  // namespace witan

#include "witan/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/tokenizer/byte_alphabet.h"
#include "witan/tokenizer/scanners.h"

namespace witan {
namespace {

constexpr int64_t kIdLimit = int64_t{1} << 24;  // no vocabulary comes near; bounds what a hostile file can allocate
constexpr const char* kSupported =
    "; Witan reads byte-level BPE: normalizer none or NFC, pre_tokenizer ByteLevel alone or behind Split and Digits, "
    "model BPE, decoder ByteLevel";

// One JSON value and its place in the file, for messages.
class Node {
 public:
  Node(const Json& value, std::string source, std::string path)
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  const Json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  template <class... Pieces>
  [[noreturn]] void corrupt(Pieces&&... pieces) const {
    throw CorruptionError(cat(source_, ": ", path_, " ", std::forward<Pieces>(pieces)...));
  }
  template <class... Pieces>
  [[noreturn]] void unsupported(Pieces&&... pieces) const {
    throw DataError(cat(source_, ": ", path_, " ", std::forward<Pieces>(pieces)..., " is not supported", kSupported));
  }

  // Member `key` of an object; a missing one reads as null.
  Node operator[](const char* key) const {
    static const Json null;
    if (!value_->is_object()) corrupt("must be an object");
    const auto found = value_->find(key);
    return {found == value_->end() ? null : *found, source_, path_.empty() ? key : cat(path_, ".", key)};
  }
  Node at(size_t index) const { return {(*value_)[index], source_, cat(path_, "[", index, "]")}; }

  const Json& object() const { return checked(value_->is_object(), "an object"); }
  const Json& array() const { return checked(value_->is_array(), "an array"); }
  const std::string& text() const { return checked(value_->is_string(), "a text").get_ref<const std::string&>(); }
  bool flag(bool otherwise) const {
    return is_null() ? otherwise : checked(value_->is_boolean(), "true or false").get<bool>();
  }
  std::string text_or_empty() const { return is_null() ? std::string() : text(); }
  std::string type() const { return (*this)["type"].text(); }
  int32_t id() const { return id_of(*value_); }

  int32_t id_of(const Json& value) const {
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(kIdLimit);
    if (!fits) corrupt("holds an id that is not a whole number from 0 to ", kIdLimit - 1);
    return value.get<int32_t>();
  }

 private:
  const Json& checked(bool holds, const char* what) const {
    if (!holds) corrupt("must be ", what);
    return *value_;
  }

  const Json* value_;
  std::string source_, path_;
};

void read_normalizer(const Node& node, TokenizerSpec& spec) {
  if (node.is_null()) return;
  const std::string type = node.type();
  if (type == "NFC") {
    spec.nfc = true;
  } else if (type == "Sequence") {
    const Node parts = node["normalizers"];
    for (size_t i = 0; i < parts.array().size(); ++i) read_normalizer(parts.at(i), spec);
  } else {
    node.unsupported("of type \"", type, "\"");
  }
}

void read_split(const Node& node, TokenizerSpec& spec) {
  if (!node["pattern"].object().contains("Regex")) node["pattern"].unsupported("other than a Regex");
  const std::string& regex = node["pattern"]["Regex"].text();
  const std::string& behavior = node["behavior"].text();
  // Where the matches are the whole text, dropping what stands between them is the same as keeping it.
  const bool covers = scanner_for(regex) && regex.ends_with("|\\s+");
  const bool keeps_all = behavior == "Isolated" || (behavior == "Removed" && node["invert"].flag(false) && covers);
  if (!keeps_all) node["behavior"].unsupported("\"", behavior, "\"");
  spec.patterns.push_back(regex);
}

void read_pretokenizer(const Node& node, TokenizerSpec& spec) {
  if (node.is_null()) node.unsupported("null");
  std::vector<Node> steps;
  if (node.type() == "Sequence") {
    const Node parts = node["pretokenizers"];
    for (size_t i = 0; i < parts.array().size(); ++i) steps.push_back(parts.at(i));
  } else {
    steps.push_back(node);
  }
  if (steps.empty() || steps.back().type() != "ByteLevel") node.unsupported("that does not end with ByteLevel");
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const std::string type = steps[i].type();
    if (type == "Split")
      read_split(steps[i], spec);
    else if (type == "Digits")
      spec.patterns.emplace_back(steps[i]["individual_digits"].flag(false) ? kDigitPattern : kDigitRunPattern);
    else
      steps[i].unsupported("of type \"", type, "\"");
  }
  const Node& bytes = steps.back();
  spec.prefix_space = bytes["add_prefix_space"].flag(true);
  if (spec.prefix_space && steps.size() > 1) bytes["add_prefix_space"].unsupported("true behind other steps");
  if (bytes["use_regex"].flag(true)) spec.patterns.emplace_back(kGpt2Pattern);
}

void read_decoder(const Node& node) {
  if (node.is_null() || node.type() == "ByteLevel") return;
  node.unsupported("of type \"", node.type(), "\"");
}

void put_token(TokenizerSpec& spec, const Node& where, int32_t id, const std::string& bytes) {
  if (bytes.empty()) where.corrupt("holds an empty token (id ", id, ")");
  if (static_cast<size_t>(id) >= spec.tokens.size()) spec.tokens.resize(static_cast<size_t>(id) + 1);
  std::string& place = spec.tokens[static_cast<size_t>(id)];
  if (!place.empty()) where.corrupt("gives the id ", id, " to two tokens");
  place = bytes;
}

void read_added_tokens(const Node& node, const Json& vocab, TokenizerSpec& spec) {
  if (node.is_null()) return;
  std::unordered_set<std::string> seen;
  for (size_t i = 0; i < node.array().size(); ++i) {
    const Node entry = node.at(i);
    AddedToken token{entry["id"].id(), entry["content"].text(), entry["special"].flag(false), false, false};
    token.normalized = entry["normalized"].flag(!token.special);
    for (const char* option : {"single_word", "lstrip", "rstrip"})
      if (entry[option].flag(false)) entry[option].unsupported("true");
    if (token.text.empty()) entry["content"].corrupt("is empty");
    if (!seen.insert(token.text).second) entry["content"].corrupt("\"", token.text, "\" stands twice");
    const auto in_model = vocab.find(token.text);
    if (in_model == vocab.end()) {
      put_token(spec, entry, token.id, token.text);
    } else {
      token.in_model = true;
      if (*in_model != token.id) entry["id"].corrupt("is ", token.id, ", but model.vocab says ", in_model->dump());
      spec.tokens[static_cast<size_t>(token.id)] = token.text;  // literal, where the model's alphabet may differ
    }
    spec.added.push_back(std::move(token));
  }
  std::sort(spec.added.begin(), spec.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

void read_vocabulary(const Node& node, const Node& added, TokenizerSpec& spec) {
  std::vector<std::string> literal;  // keys beyond the byte alphabet: added tokens only
  for (const auto& [key, value] : node.object().items()) {
    const auto bytes = from_byte_alphabet(key);
    put_token(spec, node, node.id_of(value), bytes ? *bytes : key);
    if (!bytes) literal.push_back(key);
  }
  read_added_tokens(added, node.json(), spec);
  for (const std::string& key : literal) {
    const auto known = [&](const AddedToken& token) { return token.text == key; };
    if (std::none_of(spec.added.begin(), spec.added.end(), known))
      node.unsupported("with the token \"", key, "\", which is neither in the byte alphabet nor an added token,");
  }
}

std::pair<std::string, std::string> merge_parts(const Node& node) {
  if (node.json().is_array()) {
    if (node.json().size() != 2) node.corrupt("must be a pair");
    return {node.at(0).text(), node.at(1).text()};
  }
  const std::string& text = node.text();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    node.corrupt("must be two tokens with one space between them, not \"", text, "\"");
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const Node& node, const Json& vocab, TokenizerSpec& spec) {
  const auto id_of = [&](const Node& merge, const std::string& key) {
    const auto found = vocab.find(key);
    if (found == vocab.end()) merge.corrupt("needs the token \"", key, "\", which is not in the vocabulary");
    return found->get<int32_t>();
  };
  spec.merges.reserve(node.array().size());
  for (size_t i = 0; i < node.array().size(); ++i) {
    const Node merge = node.at(i);
    const auto [left, right] = merge_parts(merge);
    spec.merges.push_back({id_of(merge, left), id_of(merge, right), id_of(merge, left + right)});
  }
}

void read_model(const Node& model, const Node& added, TokenizerSpec& spec) {
  // Files from before the field existed have no type.
  if (!model["type"].is_null() && model.type() != "BPE") model.unsupported("of type \"", model.type(), "\"");
  const Json& dropout = model["dropout"].json();
  if (!dropout.is_null() && dropout != 0) model["dropout"].unsupported("(random segmentation)");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model[affix].text_or_empty().empty()) model[affix].unsupported("\"", model[affix].text(), "\"");
  if (model["byte_fallback"].flag(false)) model["byte_fallback"].unsupported("true (SentencePiece)");
  spec.ignore_merges = model["ignore_merges"].flag(false);
  spec.unk_token = model["unk_token"].json().dump();
  read_vocabulary(model["vocab"], added, spec);
  read_merges(model["merges"], model["vocab"].json(), spec);
}

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

// Writes the vocabulary's keys: added tokens as they are, the others in the byte alphabet.
class Keys {
 public:
  explicit Keys(const TokenizerSpec& spec) : spec_(&spec), added_(spec.tokens.size()) {
    for (const AddedToken& token : spec.added) added_[static_cast<size_t>(token.id)] = &token;
  }
  bool in_model(size_t id) const { return !spec_->tokens[id].empty() && (!added_[id] || added_[id]->in_model); }
  std::string operator()(size_t id) const {
    return added_[id] ? added_[id]->text : to_byte_alphabet(spec_->tokens[id]);
  }

 private:
  const TokenizerSpec* spec_;
  std::vector<const AddedToken*> added_;
};

std::string pretokenizer_json(const TokenizerSpec& spec) {
  const bool plain = spec.patterns.empty() || (spec.patterns.size() == 1 && spec.patterns[0] == kGpt2Pattern);
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", spec.prefix_space},
                      {"trim_offsets", true},
                      {"use_regex", plain && !spec.patterns.empty()}};
  if (plain) return bytes.dump();
  Json steps = Json::array();
  for (const std::string& pattern : spec.patterns)
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(bytes);
  return Json{{"type", "Sequence"}, {"pretokenizers", steps}}.dump();
}

std::string added_tokens_json(const TokenizerSpec& spec) {
  std::string out;
  for (const AddedToken& token : spec.added)
    out += cat(out.empty() ? "\n    " : ",\n    ", "{\"id\": ", token.id, ", \"content\": ", quoted(token.text),
               ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": ",
               token.normalized ? "true" : "false", ", \"special\": ", token.special ? "true" : "false", "}");
  return out;
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view source) {
  const Json json = parse_json(text, source);
  const Node root(json, std::string(source), "");
  if (!json.is_object() || !json.contains("model"))
    throw CorruptionError(cat(source, ": not a tokenizer.json: it must be an object with a \"model\""));
  TokenizerSpec spec;
  read_normalizer(root["normalizer"], spec);
  read_pretokenizer(root["pre_tokenizer"], spec);
  read_decoder(root["decoder"]);
  read_model(root["model"], root["added_tokens"], spec);
  spec.post_processor = root["post_processor"].json().dump();
  spec.truncation = root["truncation"].json().dump();
  spec.padding = root["padding"].json().dump();
  return spec;
}

std::string write_tokenizer_json(const TokenizerSpec& spec) {
  const Keys key(spec);
  std::string out =
      cat("{\n  \"version\": \"1.0\",\n  \"truncation\": ", spec.truncation, ",\n  \"padding\": ", spec.padding,
          ",\n  \"added_tokens\": [", added_tokens_json(spec),
          "\n  ],\n  \"normalizer\": ", spec.nfc ? "{\"type\": \"NFC\"}" : "null",
          ",\n  \"pre_tokenizer\": ", pretokenizer_json(spec), ",\n  \"post_processor\": ", spec.post_processor,
          ",\n  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
          "\"use_regex\": true},\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    "
          "\"unk_token\": ",
          spec.unk_token,
          ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    "
          "\"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": ",
          spec.ignore_merges ? "true" : "false", ",\n    \"vocab\": {");
  const char* separator = "\n      ";
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!key.in_model(id)) continue;
    out += cat(separator, quoted(key(id)), ": ", id);
    separator = ",\n      ";
  }
  out += "\n    },\n    \"merges\": [";
  separator = "\n      ";
  for (const Merge& merge : spec.merges) {
    // No token of the byte alphabet holds a space, so the form with one space is safe; every reader knows it.
    out += cat(separator, quoted(key(static_cast<size_t>(merge.left)) + " " + key(static_cast<size_t>(merge.right))));
    separator = ",\n      ";
  }
  return out + "\n    ]\n  }\n}\n";
}

}  // namespace witan

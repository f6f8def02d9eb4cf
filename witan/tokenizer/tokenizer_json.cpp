#include "witan/tokenizer/tokenizer_json.h"

#include <simdjson.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/byte_alphabet.h"
#include "witan/tokenizer/scanners.h"
#include "witan/tokenizer/token_map.h"

namespace witan {
namespace {

constexpr uint64_t kIdLimit = uint64_t{1} << 24;  // no vocabulary comes near; bounds what a hostile file can allocate
constexpr const char* kSupported =
    "; Witan reads byte-level BPE: normalizer none or NFC, pre_tokenizer ByteLevel alone or behind Split and Digits, "
    "model BPE, decoder ByteLevel";

using Element = simdjson::dom::element;

constexpr size_t kMaxDepth = 64;  // as parse_json has it

// A whole file as simdjson reads it, in a tenth of the time and memory that a Json of it takes. Vocabulary and merges,
// which are nearly all of it, stay there; the rest becomes a Json.
class File {
 public:
  File(std::string_view text, std::string_view source) : source_(source) {
    Element root;
    auto error = parser_.allocate(text.size(), kMaxDepth);
    if (!error) error = parser_.parse(text.data(), text.size()).get(root);
    if (error) {
      parse_json(text, source, kMaxDepth);  // tells the byte and the reason
      throw CorruptionError(cat(source, ": not valid JSON (", simdjson::error_message(error), ")"));
    }
    rest_ = converted(root, "");
  }

  // With an empty object for model.vocab and an empty array for model.merges.
  const Json& rest() const { return rest_; }
  simdjson::dom::object vocab() const { return vocab_.value(); }
  simdjson::dom::array merges() const { return merges_.value(); }

 private:
  Json converted(const Element& element, const std::string& path) {
    switch (element.type()) {
      case simdjson::dom::element_type::OBJECT:
        if (path == ".model.vocab") {
          vocab_ = simdjson::dom::object(element);
          return Json::object();
        }
        return object(element, path);
      case simdjson::dom::element_type::ARRAY: {
        Json out = Json::array();
        if (path == ".model.merges")
          merges_ = simdjson::dom::array(element);
        else
          for (const Element each : simdjson::dom::array(element)) out.push_back(converted(each, path + "[]"));
        return out;
      }
      case simdjson::dom::element_type::STRING:
        return std::string_view(element);
      case simdjson::dom::element_type::UINT64:
        return uint64_t(element);
      case simdjson::dom::element_type::INT64:
        // Whole numbers that are not negative are unsigned, as parse_json reads them.
        return int64_t(element) < 0 ? Json(int64_t(element)) : Json(static_cast<uint64_t>(int64_t(element)));
      case simdjson::dom::element_type::DOUBLE:
        return double(element);
      case simdjson::dom::element_type::BOOL:
        return bool(element);
      default:
        return nullptr;
    }
  }

  Json object(const Element& element, const std::string& path) {
    Json out = Json::object();
    for (const auto& [key, value] : simdjson::dom::object(element)) {
      const auto [place, is_new] = out.emplace(std::string(key), nullptr);
      require<CorruptionError>(is_new, source_, ": the key \"", clipped(key), "\" appears twice in one object");
      *place = converted(value, cat(path, ".", key));
    }
    return out;
  }

  std::string source_;
  simdjson::dom::parser parser_;
  Json rest_;
  std::optional<simdjson::dom::object> vocab_;
  std::optional<simdjson::dom::array> merges_;
};

// One JSON value and its place in the file, for messages.
class Node {
 public:
  Node(const Json& value, std::string source, std::string path)
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  // For messages alone: a place inside of `other`, whose value is elsewhere.
  Node(const Node& other, std::string_view place)
      : value_(other.value_), source_(other.source_), path_(cat(other.path_, place)) {}

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
  int32_t id() const { return checked_id(value_->is_number_unsigned() ? value_->get<uint64_t>() : kIdLimit); }

  int32_t checked_id(uint64_t id) const {
    if (id >= kIdLimit) corrupt("holds an id that is not a whole number from 0 to ", kIdLimit - 1);
    return static_cast<int32_t>(id);
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
  if (spec.prefix_space && steps.size() > 1) bytes["add_prefix_space"].unsupported("true after other steps");
  if (bytes["use_regex"].flag(true)) spec.patterns.emplace_back(kGpt2Pattern);
}

void read_decoder(const Node& node) {
  if (node.is_null() || node.type() == "ByteLevel") return;
  node.unsupported("of type \"", node.type(), "\"");
}

// The vocabulary's keys, in the file's order, and their ids. Lives no longer than the file.
class Vocabulary {
 public:
  Vocabulary(const Node& node, const simdjson::dom::object& members) {
    for (const auto& [key, value] : members) {
      keys_.push_back(key);
      uint64_t id = 0;
      if (value.get(id) != simdjson::SUCCESS) id = kIdLimit;
      ids_.push_back(node.checked_id(id));
    }
    place_.emplace(keys_);
    for (size_t i = 0; i < keys_.size(); ++i)
      if (!place_->insert(static_cast<int32_t>(i))) node.corrupt("holds the key \"", clipped(keys_[i]), "\" twice");
  }
  Vocabulary(const Vocabulary&) = delete;  // the map refers to the keys

  size_t size() const { return keys_.size(); }
  std::string_view key(size_t i) const { return keys_[i]; }
  int32_t id(size_t i) const { return ids_[i]; }
  std::optional<int32_t> find(std::string_view key) const {
    const int32_t i = place_->find(key);
    return i < 0 ? std::nullopt : std::optional(ids_[static_cast<size_t>(i)]);
  }

 private:
  std::vector<std::string_view> keys_;
  std::vector<int32_t> ids_;
  std::optional<TextMap<std::string_view>> place_;
};

void put_token(TokenizerSpec& spec, const Node& where, int32_t id, std::string bytes) {
  if (bytes.empty()) where.corrupt("holds an empty token (id ", id, ")");
  if (static_cast<size_t>(id) >= spec.tokens.size()) spec.tokens.resize(static_cast<size_t>(id) + 1);
  std::string& place = spec.tokens[static_cast<size_t>(id)];
  if (!place.empty()) where.corrupt("gives the id ", id, " to two tokens");
  place = std::move(bytes);
}

void read_added_tokens(const Node& node, const Vocabulary& vocab, TokenizerSpec& spec) {
  if (node.is_null()) return;
  std::unordered_set<std::string> seen;
  for (size_t i = 0; i < node.array().size(); ++i) {
    const Node entry = node.at(i);
    AddedToken token{entry["id"].id(), entry["content"].text(), entry["special"].flag(false), false, false};
    token.normalized = entry["normalized"].flag(!token.special);
    for (const char* option : {"single_word", "lstrip", "rstrip"})
      if (entry[option].flag(false)) entry[option].unsupported("true");
    if (token.text.empty()) entry["content"].corrupt("is empty");
    if (!seen.insert(token.text).second) entry["content"].corrupt("\"", token.text, "\" appears twice");
    if (const auto in_model = vocab.find(token.text)) {
      token.in_model = true;
      if (*in_model != token.id) entry["id"].corrupt("is ", token.id, ", but model.vocab says ", *in_model);
      spec.tokens[static_cast<size_t>(token.id)] = token.text;  // literal, where the model's alphabet may differ
    } else {
      put_token(spec, entry, token.id, token.text);
    }
    spec.added.push_back(std::move(token));
  }
  std::sort(spec.added.begin(), spec.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

void read_vocabulary(const Node& node, const Vocabulary& vocab, const Node& added, TokenizerSpec& spec) {
  std::vector<std::string_view> literal;  // keys beyond the byte alphabet: added tokens only
  for (size_t i = 0; i < vocab.size(); ++i) {
    auto bytes = from_byte_alphabet(vocab.key(i));
    if (!bytes) literal.push_back(vocab.key(i));
    put_token(spec, node, vocab.id(i), bytes ? *std::move(bytes) : std::string(vocab.key(i)));
  }
  read_added_tokens(added, vocab, spec);
  std::unordered_set<std::string_view> known;
  for (const AddedToken& token : spec.added) known.insert(token.text);
  for (const std::string_view key : literal)
    if (!known.contains(key))
      node.unsupported("with the token \"", key, "\", which is neither in the byte alphabet nor an added token,");
}

void read_merges(const Node& node, const simdjson::dom::array& merges, const Vocabulary& vocab, TokenizerSpec& spec) {
  size_t rank = 0;
  const auto here = [&] { return Node(node, cat("[", rank, "]")); };
  const auto text_of = [&](const Element& part, size_t index) {
    std::string_view text;
    if (part.get(text) != simdjson::SUCCESS) Node(here(), cat("[", index, "]")).corrupt("must be a string");
    return text;
  };
  const auto id_of = [&](std::string_view key) {
    const auto id = vocab.find(key);
    if (!id) here().corrupt("needs the token \"", key, "\", which is not in the vocabulary");
    return *id;
  };
  spec.merges.reserve(merges.size());
  std::string whole;
  for (const Element merge : merges) {
    std::string_view left, right;
    if (simdjson::dom::array pair; merge.get(pair) == simdjson::SUCCESS) {
      if (pair.size() != 2) here().corrupt("must be a pair");
      left = text_of(pair.at(0).value(), 0);
      right = text_of(pair.at(1).value(), 1);
    } else {
      std::string_view text;
      if (merge.get(text) != simdjson::SUCCESS) here().corrupt("must be a string");
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        here().corrupt("must be two tokens with one space between them, not \"", text, "\"");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
    whole.assign(left).append(right);
    spec.merges.push_back({id_of(left), id_of(right), id_of(whole)});
    ++rank;
  }
}

void read_model(const File& file, const Node& model, const Node& added, TokenizerSpec& spec) {
  // Files from before the field existed have no type.
  if (!model["type"].is_null() && model.type() != "BPE") model.unsupported("of type \"", model.type(), "\"");
  const Json& dropout = model["dropout"].json();
  if (!dropout.is_null() && dropout != 0) model["dropout"].unsupported("(random segmentation)");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model[affix].text_or_empty().empty()) model[affix].unsupported("\"", model[affix].text(), "\"");
  if (model["byte_fallback"].flag(false)) model["byte_fallback"].unsupported("true (SentencePiece)");
  spec.ignore_merges = model["ignore_merges"].flag(false);
  spec.unk_token = model["unk_token"].json().dump();
  model["vocab"].object();
  const Vocabulary vocab(model["vocab"], file.vocab());
  read_vocabulary(model["vocab"], vocab, added, spec);
  model["merges"].array();
  read_merges(model["merges"], file.merges(), vocab, spec);
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
  const File file(text, source);
  const Json& json = file.rest();
  const Node root(json, std::string(source), "");
  if (!json.is_object() || !json.contains("model"))
    throw CorruptionError(cat(source, ": not a tokenizer.json: it must be an object with a \"model\""));
  TokenizerSpec spec;
  read_normalizer(root["normalizer"], spec);
  read_pretokenizer(root["pre_tokenizer"], spec);
  read_decoder(root["decoder"]);
  read_model(file, root["model"], root["added_tokens"], spec);
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

#include "witan/tokenizer/tokenizer_json.h"

#include <simdjson.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/base64.h"
#include "witan/tokenizer/byte_alphabet.h"
#include "witan/tokenizer/scanners.h"
#include "witan/tokenizer/sentencepiece.h"
#include "witan/tokenizer/serde_number.h"
#include "witan/tokenizer/token_map.h"

namespace witan {
namespace {

constexpr uint64_t kIdLimit = uint64_t{1} << 24;  // no vocabulary comes near; bounds what a hostile file can allocate
constexpr const char* kSupported =
    "; Witan reads the models BPE and Unigram, on bytes (pre_tokenizer and decoder ByteLevel) or on characters "
    "(Metaspace, byte_fallback), with the parts that docs/formats/tokenizer_json.md lists";

using Element = simdjson::dom::element;

constexpr size_t kMaxDepth = 64;  // as parse_json has it

// A whole file as simdjson reads it, in a tenth of the time and memory that a Json of it takes. Vocabulary and merges,
// which are nearly all of it, stay there; the rest becomes a Json.
class File {
 public:
  File(std::string_view text, std::string_view source) : text_(text), source_(source) {
    Element root;
    auto error = parser_.allocate(text.size(), kMaxDepth);
    if (!error) error = parser_.parse(text.data(), text.size()).get(root);
    if (error) {
      parse_json(text, source, kMaxDepth);  // tells the byte and the reason
      throw CorruptionError(cat(source, ": not valid JSON (", simdjson::error_message(error), ")"));
    }
    rest_ = converted(root, "");
  }

  // With nothing in model.vocab and model.merges.
  const Json& rest() const { return rest_; }
  simdjson::dom::object vocab() const { return vocab_.value(); }
  simdjson::dom::array scored_vocab() const { return scored_vocab_.value(); }  // of a Unigram model
  simdjson::dom::array merges() const { return merges_.value(); }
  // The scores of scored_vocab(), whose form has been checked, as the reference reads their text.
  std::vector<double> scores() const {
    std::vector<double> scores;
    simdjson::ondemand::parser parser;
    const simdjson::padded_string text(text_);
    try {
      simdjson::ondemand::document json = parser.iterate(text);
      for (auto pair : json["model"]["vocab"].get_array()) {
        auto value = pair.get_array().value().begin();
        ++value;
        std::string_view number = simdjson::ondemand::value(*value).raw_json_token();
        number = number.substr(0, number.find_last_not_of(" \t\r\n") + 1);
        scores.push_back(read_serde_number(number).value());
      }
    } catch (const std::exception&) {  // a key with escapes, or a number beyond float64
      throw CorruptionError(cat(source_, ": model.vocab[", scores.size(), "] has a score that cannot be read"));
    }
    return scores;
  }

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
        if (path == ".model.vocab")
          scored_vocab_ = simdjson::dom::array(element);
        else if (path == ".model.merges")
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

  std::string_view text_;
  std::string source_;
  simdjson::dom::parser parser_;
  Json rest_;
  std::optional<simdjson::dom::object> vocab_;
  std::optional<simdjson::dom::array> merges_, scored_vocab_;
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

std::string bytes_in(const Node& node) {
  auto bytes = from_base64(node.text());
  if (!bytes) node.corrupt("is not base64");
  return *std::move(bytes);
}

// The text or the regular expression of a Split or Replace. Sets `regex`.
std::string pattern_in(const Node& node, bool& regex) {
  const Json& pattern = node["pattern"].object();
  regex = pattern.contains("Regex");
  if (!regex && !pattern.contains("String")) node["pattern"].unsupported("that is neither a Regex nor a String");
  const std::string text = node["pattern"][regex ? "Regex" : "String"].text();
  if (text.empty()) node["pattern"].corrupt("is empty");
  return text;
}

void read_normalizer(const Node& node, TokenizerSpec& spec) {
  using Kind = NormalizerStep::Kind;
  if (node.is_null()) return;
  const std::string type = node.type();
  static const std::map<std::string, Kind, std::less<>> kPlain = {{"NFC", Kind::nfc},
                                                                  {"NFD", Kind::nfd},
                                                                  {"NFKC", Kind::nfkc},
                                                                  {"NFKD", Kind::nfkd},
                                                                  {"Lowercase", Kind::lowercase}};
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
  } else if (type == "Sequence") {
    const Node parts = node["normalizers"];
    for (size_t i = 0; i < parts.array().size(); ++i) read_normalizer(parts.at(i), spec);
    return;
  } else {
    node.unsupported("of type \"", type, "\"");
  }
  spec.normalizers.push_back(std::move(step));
}

SplitStep read_split(const Node& node) {
  static const std::map<std::string, SplitBehavior, std::less<>> kBehaviors = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"Contiguous", SplitBehavior::contiguous},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next}};
  bool regex = false;
  SplitStep step(pattern_in(node, regex));
  if (!regex) step.kind = SplitStep::Kind::literal;
  const auto behavior = kBehaviors.find(node["behavior"].text());
  if (behavior == kBehaviors.end()) node["behavior"].unsupported("\"", node["behavior"].text(), "\"");
  step.behavior = behavior->second;
  step.invert = node["invert"].flag(false);
  // Where the matches are the whole text, dropping what stands between them is the same as keeping it.
  const bool covers = regex && scanner_for(step.pattern) && step.pattern.ends_with("|\\s+");
  if (step.behavior == SplitBehavior::isolated || (covers && step.invert && step.behavior == SplitBehavior::removed)) {
    step.behavior = SplitBehavior::isolated;  // where invert changes nothing
    step.invert = false;
  }
  return step;
}

// "always", "first" or "never"; older files say add_prefix_space.
PrependScheme prepend_scheme(const Node& node) {
  const Node scheme = node["prepend_scheme"];
  if (scheme.is_null()) return node["add_prefix_space"].flag(true) ? PrependScheme::always : PrependScheme::never;
  if (scheme.text() == "always") return PrependScheme::always;
  if (scheme.text() == "first") return PrependScheme::first;
  if (scheme.text() != "never") scheme.unsupported("\"", scheme.text(), "\"");
  return PrependScheme::never;
}

std::string replacement_in(const Node& node) {
  const std::string& text = node["replacement"].text();
  if (text.empty()) node["replacement"].corrupt("is empty");
  return text;
}

SplitStep read_step(const Node& node) {
  const std::string type = node.type();
  if (type == "Split") return read_split(node);
  if (type == "Digits") return std::string(node["individual_digits"].flag(false) ? kDigitPattern : kDigitRunPattern);
  if (type == "Metaspace")
    return SplitStep::metaspace(replacement_in(node), prepend_scheme(node), node["split"].flag(true));
  if (type == "WhitespaceSplit") {
    SplitStep step("\\s+");
    step.behavior = SplitBehavior::removed;
    return step;
  }
  node.unsupported("of type \"", type, "\"");
}

// A vocabulary of bytes is one whose text passes ByteLevel last.
void read_pretokenizer(const Node& node, bool bytes_expected, TokenizerSpec& spec) {
  if (node.is_null()) {
    if (bytes_expected) node.unsupported("null");
    spec.byte_level = false;
    return;
  }
  std::vector<Node> steps;
  if (node.type() == "Sequence") {
    const Node parts = node["pretokenizers"];
    for (size_t i = 0; i < parts.array().size(); ++i) steps.push_back(parts.at(i));
  } else {
    steps.push_back(node);
  }
  spec.byte_level = !steps.empty() && steps.back().type() == "ByteLevel";
  if (!spec.byte_level && bytes_expected) node.unsupported("that does not end with ByteLevel");
  for (size_t i = 0; i + spec.byte_level < steps.size(); ++i) spec.patterns.push_back(read_step(steps[i]));
  if (!spec.byte_level) return;
  const Node& bytes = steps.back();
  spec.prefix_space = bytes["add_prefix_space"].flag(true);
  if (spec.prefix_space && steps.size() > 1) bytes["add_prefix_space"].unsupported("true after other steps");
  if (bytes["use_regex"].flag(true)) spec.patterns.emplace_back(std::string(kGpt2Pattern));
}

void read_decoder_step(const Node& node, Decoding& decoding) {
  const std::string type = node.type();
  if (type == "Sequence") {
    const Node parts = node["decoders"];
    for (size_t i = 0; i < parts.array().size(); ++i) read_decoder_step(parts.at(i), decoding);
  } else if (type == "ByteFallback") {
    decoding.byte_fallback = true;
  } else if (type == "Metaspace") {
    decoding.space = replacement_in(node);
    decoding.strip_spaces = prepend_scheme(node) != PrependScheme::never;
  } else if (type == "Replace") {
    bool regex = false;
    decoding.space = pattern_in(node, regex);
    if (regex || node["content"].text() != " ") node.unsupported("other than of a text by a space");
  } else if (type == "Strip") {
    const Json& start = node["start"].json();
    if (!start.is_number_unsigned() || start.get<uint64_t>() > 64)
      node["start"].corrupt("must be a number from 0 to 64");
    if (node["content"].text() != " ") node.unsupported("of other characters than a space");
    decoding.strip_spaces = start.get<int64_t>();
  } else if (type != "Fuse") {
    node.unsupported("of type \"", type, "\"");
  }
}

void read_decoder(const Node& node, TokenizerSpec& spec) {
  if (spec.byte_level) {
    if (!node.is_null() && node.type() != "ByteLevel") node.unsupported("of type \"", node.type(), "\"");
    return;
  }
  if (!node.is_null()) read_decoder_step(node, spec.decoding);
  spec.decoder = node.json().dump();
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
    index(node);
  }
  // Of a Unigram model: pairs of a token and its score, by id.
  Vocabulary(const Node& node, const simdjson::dom::array& pairs) {
    for (const Element each : pairs) {
      const auto id = node.checked_id(keys_.size());
      simdjson::dom::array pair;
      std::string_view key;
      double score = 0;
      if (each.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(key) != simdjson::SUCCESS ||
          pair.at(1).get(score) != simdjson::SUCCESS)
        node.corrupt("[", id, "] must be a text and a number");
      keys_.push_back(key);
      ids_.push_back(id);
    }
    index(node);
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
  void index(const Node& node) {
    place_.emplace(keys_);
    for (size_t i = 0; i < keys_.size(); ++i)
      if (!place_->insert(static_cast<int32_t>(i))) node.corrupt("holds the key \"", clipped(keys_[i]), "\" twice");
  }

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
    token.single_word = entry["single_word"].flag(false);
    token.lstrip = entry["lstrip"].flag(false);
    token.rstrip = entry["rstrip"].flag(false);
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
    std::optional<std::string> bytes(vocab.key(i));
    if (spec.byte_level) bytes = from_byte_alphabet(vocab.key(i));
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

void read_bpe(const File& file, const Node& model, const Node& added, TokenizerSpec& spec) {
  const Json& dropout = model["dropout"].json();
  if (!dropout.is_null() && dropout != 0) model["dropout"].unsupported("(random segmentation)");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model[affix].text_or_empty().empty()) model[affix].unsupported("\"", model[affix].text(), "\"");
  spec.byte_fallback = model["byte_fallback"].flag(false);
  if (spec.byte_fallback && spec.byte_level) model["byte_fallback"].unsupported("true (SentencePiece)");
  spec.fuse_unk = model["fuse_unk"].flag(false);
  spec.ignore_merges = model["ignore_merges"].flag(false);
  spec.unk_token = model["unk_token"].json().dump();
  model["vocab"].object();
  const Vocabulary vocab(model["vocab"], file.vocab());
  read_vocabulary(model["vocab"], vocab, added, spec);
  model["merges"].array();
  read_merges(model["merges"], file.merges(), vocab, spec);
  if (!spec.byte_level && !model["unk_token"].is_null()) {
    spec.unk = vocab.find(model["unk_token"].text());
    if (!spec.unk) model["unk_token"].corrupt("\"", model["unk_token"].text(), "\" is not in the vocabulary");
  }
  if (model["witan"].is_null() || model["witan"]["merge_ranks"].is_null()) return;
  if (model["witan"]["merge_ranks"].text() != "result") model["witan"]["merge_ranks"].corrupt("must be \"result\"");
  for (const Merge& merge : spec.merges) spec.merge_ranks.push_back(static_cast<uint32_t>(merge.result));
}

void read_unigram(const File& file, const Node& model, const Node& added, TokenizerSpec& spec) {
  spec.model = TokenizerSpec::Model::unigram;
  if (spec.byte_level) model.unsupported("of type \"Unigram\" behind ByteLevel");
  spec.byte_fallback = model["byte_fallback"].flag(false);
  model["vocab"].array();
  const Vocabulary vocab(model["vocab"], file.scored_vocab());
  spec.scores = file.scores();
  read_vocabulary(model["vocab"], vocab, added, spec);
  if (model["unk_id"].is_null()) return;
  spec.unk = model["unk_id"].id();
  if (static_cast<size_t>(*spec.unk) >= vocab.size()) model["unk_id"].corrupt("is not in the vocabulary");
}

void read_model(const File& file, const Node& model, const Node& added, TokenizerSpec& spec) {
  const std::string type = model["type"].is_null() ? "BPE" : model.type();  // of before the field existed
  if (type == "BPE")
    read_bpe(file, model, added, spec);
  else if (type == "Unigram")
    read_unigram(file, model, added, spec);
  else
    model.unsupported("of type \"", type, "\"");
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view source) {
  const File file(text, source);
  const Json& json = file.rest();
  const Node root(json, std::string(source), "");
  if (!json.is_object() || !json.contains("model"))
    throw CorruptionError(cat(source, ": not a tokenizer.json: it must be an object with a \"model\""));
  const Node model = root["model"];
  TokenizerSpec spec;
  if (model.json().is_object() && model.json().contains("witan") && !model["witan"]["sentencepiece"].is_null()) {
    spec = sentencepiece_spec(bytes_in(model["witan"]["sentencepiece"]), source);
  } else {
    read_normalizer(root["normalizer"], spec);
    const Node decoder = root["decoder"];
    read_pretokenizer(root["pre_tokenizer"], !decoder.is_null() && decoder.type() == "ByteLevel", spec);
    read_decoder(decoder, spec);
    read_model(file, model, root["added_tokens"], spec);
  }
  spec.post_processor = root["post_processor"].json().dump();
  spec.truncation = root["truncation"].json().dump();
  spec.padding = root["padding"].json().dump();
  return spec;
}

}  // namespace witan

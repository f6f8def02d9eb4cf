#include <simdjson.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/serde_number.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/files/tokenizer_json_parts.h"
#include "witan/tokenizer/models/sentencepiece.h"
#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/text/byte_alphabet.h"

namespace witan {
namespace {

constexpr size_t kIdsForToken = 16, kMoreIds = 65'536;  // published vocabularies skip a few percent of their ids
constexpr uint64_t kLongestWord = 10'000;               // WordPiece takes quadratic time for a word

using Element = simdjson::dom::element;

constexpr size_t kMaxDepth = 64;  // as in parse_json()

// A file parsed by simdjson, in a tenth of the time and memory that nlohmann::json takes. The vocabulary and the
// merges, nearly all of the file, stay in simdjson's form; the rest becomes a Json.
class File {
 public:
  File(std::string_view text, std::string_view source) : text_(text), source_(source) {
    Element root;
    auto error = parser_.allocate(text.size(), kMaxDepth);
    if (!error) error = parser_.parse(text.data(), text.size()).get(root);
    if (error) {
      parse_json(text, source, kMaxDepth);  // throws with the byte and the reason
      throw CorruptionError(cat(source, ": not valid JSON (", simdjson::error_message(error), ")"));
    }
    rest_ = converted(root, "");
  }

  // The file, with model.vocab and model.merges empty.
  const Json& rest() const { return rest_; }
  simdjson::dom::object vocab() const { return vocab_.value(); }
  simdjson::dom::array scored_vocab() const { return scored_vocab_.value(); }  // for a Unigram model
  simdjson::dom::array merges() const { return merges_.value(); }
  // The scores in scored_vocab(), parsed as the reference does. The form of the pairs has been checked.
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
        // As in parse_json(), integers that are not negative are unsigned.
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

// The vocabulary's keys and ids, in the order of the file, which must outlive this.
class Vocabulary {
 public:
  Vocabulary(const JsonNode& node, const simdjson::dom::object& members) {
    for (const auto& [key, value] : members) {
      keys_.push_back(key);
      uint64_t id = 0;
      if (value.get(id) != simdjson::SUCCESS) id = kTokenIdLimit;
      ids_.push_back(node.checked_id(id));
    }
    index(node);
  }
  // For a Unigram model: pairs of a token and its score, by id.
  Vocabulary(const JsonNode& node, const simdjson::dom::array& pairs) {
    for (const Element each : pairs) {
      const auto id = node.checked_id(keys_.size());
      simdjson::dom::array pair;
      std::string_view key;
      double score = 0;
      if (each.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(key) != simdjson::SUCCESS ||
          pair.at(1).get(score) != simdjson::SUCCESS)
        node.corrupt("[", id, "] must be a string and a number");
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
  void index(const JsonNode& node) {
    place_.emplace(keys_);
    for (size_t i = 0; i < keys_.size(); ++i)
      if (!place_->insert(static_cast<int32_t>(i))) node.corrupt("contains the key \"", clipped(keys_[i]), "\" twice");
  }

  std::vector<std::string_view> keys_;
  std::vector<int32_t> ids_;
  std::optional<TextMap<std::string_view>> place_;
};

void put_token(TokenizerSpec& spec, const JsonNode& where, int32_t id, std::string bytes) {
  if (static_cast<size_t>(id) >= spec.tokens.size()) spec.tokens.resize(static_cast<size_t>(id) + 1);
  if (bytes.empty()) spec.empty_token = id;
  std::string& place = spec.tokens[static_cast<size_t>(id)];
  if (!place.empty() || (id == spec.empty_token && !bytes.empty()))
    where.corrupt("gives the id ", id, " to two tokens");
  place = std::move(bytes);
}

void read_added_tokens(const JsonNode& node, const Vocabulary& vocab, TokenizerSpec& spec) {
  if (node.is_null()) return;
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < node.array().size(); ++i) {
    const JsonNode entry = node.at(i);
    AddedToken token{entry["id"].id(), entry["content"].text(), entry["special"].flag(false), false, false};
    token.normalized = entry["normalized"].flag(!token.special);
    token.single_word = entry["single_word"].flag(false);
    token.lstrip = entry["lstrip"].flag(false);
    token.rstrip = entry["rstrip"].flag(false);
    if (token.text.empty()) continue;  // like the reference, skips empty tokens
    if (const auto [other, is_new] = places.emplace(token.text, spec.added.size()); !is_new) {
      AddedToken& before = spec.added[other->second];  // the last entry counts, but a special token stays special
      if (before.id != token.id)
        entry["id"].corrupt("gives \"", token.text, "\" the ids ", before.id, " and ", token.id);
      token.special |= before.special;
      token.in_model = before.in_model;
      before = std::move(token);
      continue;
    }
    if (const auto in_model = vocab.find(token.text)) {
      token.in_model = true;
      if (*in_model != token.id) entry["id"].corrupt("is ", token.id, ", but model.vocab says ", *in_model);
      spec.tokens[static_cast<size_t>(token.id)] =
          token.text;  // literally, even if the model's alphabet spells it differently
    } else {
      put_token(spec, entry, token.id, token.text);
    }
    spec.added.push_back(std::move(token));
  }
  std::sort(spec.added.begin(), spec.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

// Tables have an entry for every id up to the largest, so a few ids far beyond all others would make them huge.
void check_ids(const JsonNode& node, const Vocabulary& vocab, const JsonNode& added) {
  const size_t tokens = vocab.size() + (added.is_null() ? 0 : added.array().size());
  const auto check = [&](const JsonNode& where, int32_t id) {
    if (static_cast<size_t>(id) > kIdsForToken * tokens + kMoreIds)
      where.corrupt("contains the id ", id, ", far beyond the number of tokens, ", tokens,
                    ": give its token a smaller id");
  };
  for (size_t i = 0; i < vocab.size(); ++i) check(node, vocab.id(i));
  for (size_t i = 0; !added.is_null() && i < added.array().size(); ++i)
    check(added.at(i)["id"], added.at(i)["id"].id());
}

void read_vocabulary(const JsonNode& node, const Vocabulary& vocab, const JsonNode& added, TokenizerSpec& spec) {
  check_ids(node, vocab, added);
  std::vector<std::string_view> literal;  // keys outside the byte alphabet, allowed for added tokens only
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

void read_merges(const JsonNode& node, const simdjson::dom::array& merges, const Vocabulary& vocab,
                 TokenizerSpec& spec) {
  size_t rank = 0;
  const auto here = [&] { return JsonNode(node, cat("[", rank, "]")); };
  const auto text_of = [&](const Element& part, size_t index) {
    std::string_view text;
    if (part.get(text) != simdjson::SUCCESS) JsonNode(here(), cat("[", index, "]")).corrupt("must be a string");
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

void read_bpe(const File& file, const JsonNode& model, const JsonNode& added, TokenizerSpec& spec) {
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

void read_unigram(const File& file, const JsonNode& model, const JsonNode& added, TokenizerSpec& spec) {
  spec.model = TokenizerSpec::Model::unigram;
  if (spec.byte_level) model.unsupported("of type \"Unigram\" after ByteLevel");
  spec.byte_fallback = model["byte_fallback"].flag(false);
  model["vocab"].array();
  const Vocabulary vocab(model["vocab"], file.scored_vocab());
  spec.scores = file.scores();
  read_vocabulary(model["vocab"], vocab, added, spec);
  if (model["unk_id"].is_null()) return;
  spec.unk = model["unk_id"].id();
  if (static_cast<size_t>(*spec.unk) >= vocab.size()) model["unk_id"].corrupt("is not in the vocabulary");
}

void read_words(const File& file, const JsonNode& model, const JsonNode& added, TokenizerSpec& spec) {
  const bool pieces = model.type() == "WordPiece";
  spec.model = pieces ? TokenizerSpec::Model::word_piece : TokenizerSpec::Model::word_level;
  if (spec.byte_level) model.unsupported("of type \"", model.type(), "\" after ByteLevel");
  model["vocab"].object();
  const Vocabulary vocab(model["vocab"], file.vocab());
  read_vocabulary(model["vocab"], vocab, added, spec);
  const JsonNode unknown = model["unk_token"];
  spec.unk_token = unknown.json().dump();
  spec.unk = vocab.find(unknown.text());
  if (!pieces) return;
  spec.word_prefix = model["continuing_subword_prefix"].text();
  const Json& longest = model["max_input_chars_per_word"].json();
  if (!longest.is_number_unsigned() || longest.get<uint64_t>() > kLongestWord)
    model["max_input_chars_per_word"].corrupt("must be an integer up to ", kLongestWord);
  spec.longest_word = longest.get<int64_t>();
}

void read_model(const File& file, const JsonNode& model, const JsonNode& added, TokenizerSpec& spec) {
  const std::string type = model["type"].is_null() ? "BPE" : model.type();  // older files have no type
  if (type == "BPE")
    read_bpe(file, model, added, spec);
  else if (type == "Unigram")
    read_unigram(file, model, added, spec);
  else if (type == "WordPiece" || type == "WordLevel")
    read_words(file, model, added, spec);
  else
    model.unsupported("of type \"", type, "\"");
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text, std::string_view source) {
  const File file(text, source);
  const Json& json = file.rest();
  const JsonNode root(json, std::string(source), "");
  if (!json.is_object() || !json.contains("model"))
    throw CorruptionError(cat(source, ": not a tokenizer.json: it must be an object with a \"model\""));
  const JsonNode model = root["model"];
  TokenizerSpec spec;
  if (model.json().is_object() && model.json().contains("witan") && !model["witan"]["sentencepiece"].is_null()) {
    spec = sentencepiece_spec(bytes_in(model["witan"]["sentencepiece"]), source);
  } else {
    read_normalizer(root["normalizer"], spec);
    const JsonNode decoder = root["decoder"];
    read_pretokenizer(root["pre_tokenizer"], decodes_bytes(decoder), spec);
    read_decoder(decoder, spec);
    read_model(file, model, root["added_tokens"], spec);
  }
  read_post_processor(root["post_processor"], spec);
  spec.truncation = root["truncation"].json().dump();
  spec.padding = root["padding"].json().dump();
  return spec;
}

}  // namespace witan

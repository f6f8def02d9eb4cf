#include <string>
#include <vector>

#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/files/tokenizer_json_parts.h"

namespace witan {
namespace {

void put_around(const JsonNode& where, int32_t id, std::vector<int32_t>& ids, const TokenizerSpec& spec) {
  if (static_cast<size_t>(id) >= spec.tokens.size() || spec.tokens[static_cast<size_t>(id)].empty())
    where.corrupt("adds the token ", id, ", which is not in the vocabulary");
  ids.push_back(id);
}

void read_template(const JsonNode& node, TokenizerSpec& spec) {
  const JsonNode single = node["single"], tokens = node["special_tokens"];
  bool after_text = false;
  for (size_t i = 0; i < single.array().size(); ++i) {
    const JsonNode piece = single.at(i);
    if (const JsonNode sequence = piece["Sequence"]; !sequence.is_null()) {
      if (after_text || sequence["id"].text() != "A") single.unsupported("with more than the one text $A");
      after_text = true;
      continue;
    }
    const JsonNode ids = tokens[piece["SpecialToken"]["id"].text().c_str()]["ids"];
    for (size_t k = 0; k < ids.array().size(); ++k)
      put_around(ids.at(k), ids.at(k).id(), after_text ? spec.after : spec.before, spec);
  }
  if (!after_text) single.unsupported("without the text ($A)");
}

// BERT's and RoBERTa's: one token before and one after, each given with its id.
void read_pair(const JsonNode& node, TokenizerSpec& spec) {
  const auto read = [&](const char* key, std::vector<int32_t>& ids) {
    const JsonNode token = node[key];
    if (token.array().size() != 2) token.corrupt("must be a token and its id");
    put_around(token, token.at(1).id(), ids, spec);
  };
  read("cls", spec.before);
  read("sep", spec.after);
}

// Returns whether the part adds tokens. At most one part may: Hugging Face would pass the second several sequences.
bool read_part(const JsonNode& node, TokenizerSpec& spec) {
  const std::string type = node.type();
  if (type == "Sequence") {
    const JsonNode parts = node["processors"];
    bool adds = false;
    for (size_t i = 0; i < parts.array().size(); ++i) {
      const bool another = read_part(parts.at(i), spec);
      if (adds && another) node.unsupported("with several parts that add tokens");
      adds |= another;
    }
    return adds;
  }
  if (type == "ByteLevel") return false;  // it only changes offsets
  if (type == "TemplateProcessing")
    read_template(node, spec);
  else if (type == "BertProcessing" || type == "RobertaProcessing")
    read_pair(node, spec);
  else
    node.unsupported("of type \"", type, "\"");
  return true;
}

}  // namespace

void read_post_processor(const JsonNode& node, TokenizerSpec& spec) {
  spec.post_processor = node.json().dump();
  if (!node.is_null()) read_part(node, spec);
}

void put_around_texts(std::optional<int32_t> first, std::optional<int32_t> last, TokenizerSpec& spec) {
  if (!first && !last) return;
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto put_token = [&](const std::optional<int32_t>& id, int type, std::vector<Json*> templates) {
    if (!id) return;
    const std::string& text = spec.tokens[static_cast<size_t>(*id)];
    tokens[text] = {{"id", text}, {"ids", Json::array({*id})}, {"tokens", Json::array({text})}};
    for (Json* one : templates) one->push_back({{"SpecialToken", {{"id", text}, {"type_id", type}}}});
  };
  put_token(first, 0, {&single, &pair});
  for (Json* one : {&single, &pair}) one->push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  put_token(last, 0, {&single, &pair});
  put_token(first, 1, {&pair});
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  put_token(last, 1, {&pair});
  spec.post_processor =
      Json{{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}}.dump();
  spec.before = first ? std::vector{*first} : std::vector<int32_t>();
  spec.after = last ? std::vector{*last} : std::vector<int32_t>();
}

}  // namespace witan

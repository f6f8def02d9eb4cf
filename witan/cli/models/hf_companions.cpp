#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/hash.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/cli/models/exported_run.h"
#include "witan/convert/adapters.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/hf/hf_side.h"
#include "witan/convert/ledger.h"
#include "witan/convert/model_function.h"
#include "witan/tokenizer/chat/chat_template.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string name_in_python(Element element) {
  switch (element) {
    case Element::f64:
      return "float64";
    case Element::f32:
      return "float32";
    case Element::f16:
      return "float16";
    default:
      return "bfloat16";
  }
}

// The imported config.json, if it still describes the model. Weights that were quantised are written in the dtype that
// they were read as, so its quantization_config is removed.
std::optional<std::string> kept_config(const ExportedRun& run, const Architecture& architecture) {
  const fs::path path = run.folder / kCompanionFolder / kHfConfig;
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return std::nullopt;
  const std::string text = read_file(path);
  const HfModel hf = read_hf_config(text, path.string());
  if (hf.architecture != &architecture || !differences(without_adapters(run.config.model), hf.model).empty())
    return std::nullopt;
  auto json = OrderedJson::parse(text);
  size_t erased = json.erase("quantization_config");
  if (hf.text_decoder) erased += json[kTextConfig].erase("quantization_config");
  return erased > 0 ? json.dump(2) + "\n" : text;
}

// Writes the chat template of a run that was fine-tuned with another one than its model's, where transformers looks
// first.
void write_chat_template(const fs::path& run, const fs::path& out) {
  const auto own = find_chat_template(run), known = find_chat_template(out);
  if (own && (!known || own->chat.source() != known->chat.source()))
    write_file_atomically(out / "chat_template.jinja", own->chat.source());
}

// The tokens that begin and end a text, under config.json's names: from the folder that the run was imported from, or
// else from the tokenizer. A missing token is written as null, since readers replace missing keys by the architecture's
// defaults and would end texts at a token of another vocabulary.
OrderedJson named_tokens(const ExportedRun& run, const std::optional<Tokenizer>& tokenizer) {
  OrderedJson tokens = {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}};
  if (const auto end = tokenizer ? tokenizer->end_of_text() : std::nullopt) tokens["eos_token_id"] = *end;
  const fs::path imported = run.folder / kCompanionFolder / kHfConfig;
  std::error_code none;
  if (!fs::is_regular_file(imported, none)) return tokens;
  const Json config = parse_json(read_file(imported), imported.string());
  for (const char* key : {"bos_token_id", "eos_token_id"})
    if (config.contains(key)) tokens[key] = config[key];
  return tokens;
}

// eos_token_id as in published chat models: an answer ends at the end of a turn or of a text.
void end_turns(OrderedJson& tokens, int32_t end_of_turn) {
  OrderedJson ends = OrderedJson::array({end_of_turn});
  const OrderedJson known = tokens.value("eos_token_id", OrderedJson());
  for (const OrderedJson& one : known.is_array() ? known : OrderedJson::array({known})) {
    if (one == end_of_turn) return;
    if (one.is_number_integer()) ends.push_back(one);
  }
  tokens["eos_token_id"] = ends.size() == 1 ? ends.front() : ends;
}

// Extends the generation settings of an imported folder, which may only end texts and not turns.
void end_turns_in_folder(const fs::path& out, int32_t end_of_turn, const OrderedJson& tokens, Ledger& ledger) {
  const fs::path path = out / "generation_config.json";
  std::error_code none;
  const bool known = fs::is_regular_file(path, none);
  OrderedJson settings = known ? OrderedJson::parse(read_file(path), nullptr, false) : tokens;
  if (!settings.is_object()) return;  // not settings; left to the folder's readers
  const OrderedJson before = settings;
  end_turns(settings, end_of_turn);
  if (known && settings == before) return;
  write_file_atomically(path, settings.dump(2) + "\n");
  std::erase_if(ledger.files, [&](const LedgerFile& file) { return file.name == path.filename(); });
}

// tokenizer_config.json: what transformers needs to read the tokenizer, and the longest text.
OrderedJson tokenizer_config(const Tokenizer& tokenizer, const ChatTokens& chat, int64_t positions) {
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"clean_up_tokenization_spaces", false},
                        {"model_max_length", positions}};
  if (!chat.bos_token.empty()) config["bos_token"] = chat.bos_token;
  const auto end = chat.end_of_turn ? chat.end_of_turn : tokenizer.end_of_text();
  if (!chat.eos_token.empty())
    config["eos_token"] = chat.eos_token;
  else if (end)
    config["eos_token"] = replace_invalid_utf8(std::string(tokenizer.token_bytes(*end)));
  return config;
}

// Writes the files next to a new config.json: those of the import, or else the run's own.
void write_settings(const ExportedRun& run, const OrderedJson& tokens, const std::optional<Tokenizer>& tokenizer,
                    const ChatTokens& chat, const fs::path& out, Ledger& ledger) {
  const auto settle = [&](const char* name, const OrderedJson& own) {
    const fs::path from = run.folder / kCompanionFolder;
    std::error_code none;
    if (!fs::is_regular_file(from / name, none)) return write_file_atomically(out / name, own.dump(2) + "\n");
    for (LedgerFile& file : copy_companions(from, {name}, out)) ledger.files.push_back(std::move(file));
  };
  settle("generation_config.json", tokens);
  if (tokenizer) settle("tokenizer_config.json", tokenizer_config(*tokenizer, chat, run.config.data.seq_length));
}

// Copies the sections of rotary positions, which only images and videos tell apart, from the imported text decoder.
void keep_rope_sections(const OrderedJson& imported, OrderedJson& text) {
  for (const char* spelling : {"rope_scaling", "rope_parameters"})
    for (const char* key : {"mrope_section", "mrope_interleaved"})
      if (imported.contains(spelling) && imported[spelling].is_object() && imported[spelling].contains(key))
        text["rope_parameters"][key] = imported[spelling][key];
}

// The imported config.json of a vision-language model with another text decoder, or `text` itself for other models.
// Published Qwen2-VL and Qwen2.5-VL describe the text decoder beside their towers.
OrderedJson around_text_decoder(const ExportedRun& run, OrderedJson text) {
  auto json = OrderedJson::parse(read_file(run.folder / kCompanionFolder / kHfConfig));
  const bool nested = json.contains(kTextConfig);
  if (!nested && !json.contains("vision_config")) return text;
  keep_rope_sections(nested ? json[kTextConfig] : json, text);
  json.erase("quantization_config");
  text.erase("architectures");
  if (nested) {
    json["tie_word_embeddings"] = text["tie_word_embeddings"];
    json[kTextConfig] = std::move(text);
    return json;
  }
  for (const char* key : {"rope_scaling", "rope_theta"}) json.erase(key);
  text.erase("model_type");
  json.update(text);
  return json;
}

bool has_tokenizer(const fs::path& folder) {
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  return has("tokenizer.json") || has("tokenizer.model") || has("tekken.json") ||
         (has("vocab.json") && has("merges.txt"));
}

}  // namespace

NameStyle style_for(const ExportedRun& run, const Architecture& architecture) {
  NameStyle style{default_storage(architecture), false, false, run.config.model.mtp_num_layers > 0};
  if (run.ledger && run.ledger->architecture == architecture.model_type) style = run.ledger->style;
  if (style.storage == ExpertStorage::mxfp4) style.storage = ExpertStorage::fused;
  const fs::path imported = run.folder / kCompanionFolder;
  if (const auto side = side_style(imported)) {
    const HfModel hf = read_hf_config(read_file(imported / kHfConfig), (imported / kHfConfig).string());
    require<ConfigError>(hf.architecture == &architecture, "--architecture ", architecture.model_type,
                         ": this run was imported with tensors beside its text decoder, which only a folder of type ",
                         hf.architecture->model_type, " holds");
    style.prefix = side->prefix;
    style.head = side->head;
  }
  return style;
}

void write_companions(const ExportedRun& run, const Architecture& architecture, const HfExport& how,
                      const std::string& quantization, const fs::path& out, Ledger& ledger) {
  const auto config = kept_config(run, architecture);
  if (config) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run.folder / kCompanionFolder))
      if (entry.path().filename() != kHfConfig && entry.path().filename() != kSideTensors)
        names.push_back(entry.path().filename());
    std::ranges::sort(names);
    ledger.files = copy_companions(run.folder / kCompanionFolder, names, out);
  }
  if (const auto tokenizer = run.tokenizer(); tokenizer && !has_tokenizer(out)) {
    write_file_atomically(out / "tokenizer.json", *tokenizer);
    ledger.files.push_back({"tokenizer.json", tokenizer->size(), hash_hex(tokenizer->data(), tokenizer->size())});
  }
  std::string text = config.value_or("");
  std::optional<Tokenizer> tokenizer;
  if (const auto own = run.tokenizer(); own && (!config || run.config.data.sft))
    tokenizer.emplace(parse_tokenizer_json(*own, "tokenizer.json"));
  OrderedJson tokens = named_tokens(run, tokenizer);
  const ChatTokens chat = chat_tokens(run, tokenizer);
  if (!config) {
    if (chat.end_of_turn) end_turns(tokens, *chat.end_of_turn);
    write_settings(run, tokens, tokenizer, chat, out, ledger);
    const Element element = how.dtype.value_or(*element_of(run.config.model.compute_dtype()));
    auto json = OrderedJson::parse(write_hf_config(architecture, without_adapters(run.config.model),
                                                   run.config.data.seq_length, name_in_python(element)));
    json.update(tokens);
    if (!how.style.prefix.empty()) json = around_text_decoder(run, std::move(json));
    text = json.dump(2) + "\n";
  }
  if (chat.end_of_turn) end_turns_in_folder(out, *chat.end_of_turn, tokens, ledger);
  write_chat_template(run.folder, out);
  if (!quantization.empty()) {
    auto json = OrderedJson::parse(text);
    json["quantization_config"] = OrderedJson::parse(quantization);
    text = json.dump(2) + "\n";
  }
  write_file_atomically(out / kHfConfig, text);
}

}  // namespace witan::cli

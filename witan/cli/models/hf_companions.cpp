#include "witan/cli/models/hf_companions.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/hash.h"
#include "witan/convert/adapters.h"
#include "witan/convert/companions.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/model_function.h"
#include "witan/tokenizer/chat/chat_template.h"

namespace witan::cli {
namespace {

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

// Where it still says what the model is. Weights that were quantised are written in
// the dtype that they were read as, so that what says how they were goes.
std::optional<std::string> kept_config(const ExportedRun& run, const Architecture& architecture) {
  const fs::path path = run.folder / kCompanionFolder / kHfConfig;
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return std::nullopt;
  const std::string text = read_file(path);
  const HfModel hf = read_hf_config(text, path.string());
  if (hf.architecture != &architecture || !differences(without_adapters(run.config.model), hf.model).empty())
    return std::nullopt;
  auto json = nlohmann::ordered_json::parse(text);
  return json.erase("quantization_config") > 0 ? json.dump(2) + "\n" : text;
}

// Of a run that was fine-tuned by another chat template than its model had: where transformers looks first.
void write_chat_template(const fs::path& run, const fs::path& out) {
  const auto own = find_chat_template(run), known = find_chat_template(out);
  if (own && (!known || own->chat.source() != known->chat.source()))
    write_file_atomically(out / "chat_template.jinja", own->chat.source());
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
  return style;
}

void write_companions(const ExportedRun& run, const Architecture& architecture, const HfExport& how,
                      const fs::path& out, Ledger& ledger) {
  const auto config = kept_config(run, architecture);
  if (config) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run.folder / kCompanionFolder))
      if (entry.path().filename() != kHfConfig) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    ledger.files = copy_companions(run.folder / kCompanionFolder, names, out);
  }
  if (const auto tokenizer = run.tokenizer(); tokenizer && !has_tokenizer(out)) {
    write_file_atomically(out / "tokenizer.json", *tokenizer);
    ledger.files.push_back({"tokenizer.json", tokenizer->size(), hash_hex(tokenizer->data(), tokenizer->size())});
  }
  write_chat_template(run.folder, out);
  const Element element = how.dtype.value_or(*element_of(run.config.model.compute_dtype()));
  write_file_atomically(out / kHfConfig, config ? *config
                                                : write_hf_config(architecture, without_adapters(run.config.model),
                                                                  run.config.data.seq_length, name_in_python(element)));
}

}  // namespace witan::cli

// witan export: a run's weights as a folder that other programs read.
#include "witan/convert/export.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/commands.h"
#include "witan/cli/gguf.h"
#include "witan/cli/options.h"
#include "witan/cli/unfinished.h"
#include "witan/convert/adapters.h"
#include "witan/convert/companions.h"
#include "witan/convert/gguf_config.h"
#include "witan/convert/gguf_export.h"
#include "witan/convert/hf_config.h"
#include "witan/convert/hf_folder.h"
#include "witan/convert/model_function.h"
#include "witan/convert/peft.h"
#include "witan/tokenizer/chat/chat_template.h"
#include "witan/train/run/load_run.h"

namespace witan::cli {
namespace {

struct ExportArgs {
  std::string run, runs_folder = "runs", format = "hf", out, architecture, dtype, max_shard_size = "5GB";
  bool merge_lora = false;
};

// A run to export: its newest intact checkpoint, as it was resolved for training.
struct Exported {
  fs::path folder;
  Checkpoint checkpoint;
  RunConfig config;
  std::optional<Ledger> ledger;  // of the import that its weights began with
};

Exported open_exported(Context& context, const ExportArgs& args) {
  const fs::path folder = find_run(args.runs_folder, args.run), checkpoints = folder / "checkpoints";
  std::vector<std::string> warnings;
  auto newest = latest_checkpoint(checkpoints, warnings);
  for (const std::string& warning : warnings) fmt::print(context.err, "warning: {}\n", warning);
  require<CheckpointError>(newest.has_value(), checkpoints.string(),
                           " has no intact checkpoint: train the run further, or restore one from a copy");
  Exported run{folder, std::move(*newest), {}, {}};
  parse_toml(run.config.fields(), read_extra_file(run.checkpoint, "config.toml"),
             (run.checkpoint.folder / "config.toml").string());
  const fs::path ledger = folder / kLedgerName;
  std::error_code none;
  if (fs::is_regular_file(ledger, none)) run.ledger = parse_ledger(read_file(ledger), ledger.string());
  return run;
}

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

// config.json as it was imported, where it still says what the model is. Weights that were quantised are written in
// the dtype that they were read as, so that what says how they were goes.
std::optional<std::string> kept_config(const Exported& run, const Architecture& architecture) {
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

const Architecture& architecture_of(const Exported& run, const ExportArgs& args) {
  const std::string asked = !args.architecture.empty() ? args.architecture : run.ledger ? run.ledger->architecture : "";
  if (!asked.empty()) return *find_architecture(asked);
  std::string why;
  for (const Architecture& one : architectures()) try {
      if (args.format == "gguf")
        write_gguf_config(one, without_adapters(run.config.model), run.config.data.seq_length);
      else
        write_hf_config(one, without_adapters(run.config.model), run.config.data.seq_length, "float32");
      return one;
    } catch (const ConfigError& error) {
      why += cat("\n  ", error.what());
    }
  throw ConfigError(cat("no architecture that Witan exports is what this model is:", why));
}

// The names that the import found, but for what is only read.
NameStyle style_for(const Exported& run, const Architecture& architecture) {
  NameStyle style{default_storage(architecture), false, false, run.config.model.mtp_num_layers > 0};
  if (run.ledger && run.ledger->architecture == architecture.model_type) style = run.ledger->style;
  if (style.storage == ExpertStorage::mxfp4) style.storage = ExpertStorage::fused;
  return style;
}

// Of a run that was fine-tuned by another chat template than its model had: where transformers looks first.
void write_chat_template(const fs::path& run, const fs::path& out) {
  const auto own = find_chat_template(run), known = find_chat_template(out);
  if (own && (!known || own->chat.source() != known->chat.source()))
    write_file_atomically(out / "chat_template.jinja", own->chat.source());
}

void write_companions(const Exported& run, const Architecture& architecture, const HfExport& how, const fs::path& out,
                      Ledger& ledger) {
  const auto config = kept_config(run, architecture);
  if (config) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run.folder / kCompanionFolder))
      if (entry.path().filename() != kHfConfig) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    ledger.files = copy_companions(run.folder / kCompanionFolder, names, out);
  } else if (run.checkpoint.manifest.files.end() !=
             std::ranges::find(run.checkpoint.manifest.files, "tokenizer.json", &Manifest::File::name)) {
    write_file_atomically(out / "tokenizer.json", read_extra_file(run.checkpoint, "tokenizer.json"));
    ledger.files = {{"tokenizer.json", 0, ""}};
  }
  write_chat_template(run.folder, out);
  const Element element = how.dtype.value_or(*element_of(run.config.model.compute_dtype()));
  write_file_atomically(out / kHfConfig, config ? *config
                                                : write_hf_config(architecture, without_adapters(run.config.model),
                                                                  run.config.data.seq_length, name_in_python(element)));
}

// The adapters alone.
Ledger export_adapters(const Exported& run, const ExportArgs& args, const Architecture& architecture,
                       CheckpointWeights& weights) {
  require<UsageError>(!args.merge_lora,
                      "--merge-lora makes one model of the base and its adapters, and --format peft "
                      "writes the adapters alone: leave one of them out");
  require<UsageError>(args.dtype.empty(), "--dtype: adapters are written in the run's dtype, ", run.config.model.dtype);
  return export_peft(weights, architecture, args.out);
}

std::optional<std::string> tokenizer_of(const Exported& run) {
  const auto& files = run.checkpoint.manifest.files;
  if (std::ranges::find(files, "tokenizer.json", &Manifest::File::name) == files.end()) return std::nullopt;
  return read_extra_file(run.checkpoint, "tokenizer.json");
}

ExitCode export_as_gguf(Context& context, const ExportArgs& args, const Exported& run,
                        const Architecture& architecture) {
  const ModelConfig& model = run.config.model;
  GgufExport how{&architecture, run.config.data.seq_length};
  how.more = gguf_vocabulary_of(tokenizer_of(run), run.folder / kCompanionFolder, model);
  if (args.dtype == "q8_0")
    how.type = Element::q8_0;
  else if (!args.dtype.empty())
    how.type = *element_of(dtype_from_name(args.dtype));
  if (run.ledger && run.ledger->from == "gguf")
    for (const LedgerEntry& entry : run.ledger->source) how.types[entry.name] = entry.dtype;
  const fs::path out = args.out;
  std::error_code none;
  require<ConfigError>(!fs::exists(out, none), out.string(), " exists already: give a file that does not");
  CheckpointWeights weights(run.checkpoint, model);
  if (model.lora_rank > 0) weights.merge_adapters();
  const Ledger ledger = export_gguf(weights, how, out);
  write_file_atomically(run.folder / "export-ledger.json", ledger.text());
  fmt::print(context.out, "{}step         {}\nmodel        {} ({})\nledger       {}\nfile         {}\n",
             ledger.summary(), run.checkpoint.step, architecture.name, gguf_architecture(architecture),
             (run.folder / "export-ledger.json").string(), out.string());
  return ExitCode::done;
}

ExitCode export_run(Context& context, const ExportArgs& args) {
  const Exported run = open_exported(context, args);
  const int64_t rank = run.config.model.lora_rank;
  require<UsageError>(!args.merge_lora || rank > 0, "--merge-lora: the run ", run.folder.filename().string(),
                      " has no adapters (lora_rank = 0); leave it out");
  const Architecture& architecture = architecture_of(run, args);
  if (args.format == "gguf") return export_as_gguf(context, args, run, architecture);
  require<ConfigError>(args.dtype != "q8_0", "--dtype q8_0 is a type of GGUF files: add --format gguf");
  HfExport how{&architecture, style_for(run, architecture), {}, {}, parse_bytes(args.max_shard_size)};
  require<ConfigError>(how.shard_bytes > 0, "--max-shard-size ", args.max_shard_size,
                       ": a file must hold something, as of 5GB");
  if (!args.dtype.empty()) how.dtype = *element_of(dtype_from_name(args.dtype));
  if (run.ledger)
    for (const LedgerEntry& entry : run.ledger->source) how.dtypes[entry.name] = entry.dtype;
  const fs::path out = args.out;
  UnfinishedFolder unfinished(out);
  std::error_code none;
  require<ConfigError>(!fs::exists(out, none) || fs::is_empty(out, none), out.string(),
                       " is not empty: give a folder that does not exist yet, so that nothing of another model stays");
  unfinished.begin();
  CheckpointWeights weights(run.checkpoint, run.config.model);
  Ledger ledger;
  const size_t adapters = adapters_of(run.config.model).size();
  if (args.format == "peft") {
    ledger = export_adapters(run, args, architecture, weights);
  } else {
    if (rank > 0) weights.merge_adapters();
    ledger = export_weights(weights, how, out);
    write_companions(run, architecture, how, out, ledger);
  }
  write_file_atomically(run.folder / "export-ledger.json", ledger.text());
  unfinished.finish();
  const int64_t padding = run.config.model.padded_vocab_size() - run.config.model.vocab_size;
  fmt::print(context.out, "{}", ledger.summary());
  if (rank > 0)
    fmt::print(context.out, "adapters     {} of rank {}, {}\n", adapters, rank,
               args.format == "peft" ? "to be loaded on the base model"
                                     : "merged: W + (alpha / rank) B A in float32, rounded once");
  if (padding > 0 && args.format != "peft")
    fmt::print(context.out, "padding      {} rows of the padded vocabulary are not exported\n", padding);
  fmt::print(context.out, "step         {}\nmodel        {} ({})\nledger       {}\nfolder       {}\n",
             run.checkpoint.step, architecture.name, architecture.model_type,
             (run.folder / "export-ledger.json").string(), out.string());
  return ExitCode::done;
}

}  // namespace

void add_export(CLI::App& app, Context& context) {
  const auto args = std::make_shared<ExportArgs>();
  CLI::App* command = add_command(
      app, context,
      {"export", "Write a run's weights as a Hugging Face folder or a GGUF file",
       "Takes the newest intact checkpoint, whatever layout wrote it. An imported run gives back the tensors that it "
       "was made of, byte for byte, and the files that came with them. LoRA adapters are merged into their matrices by "
       "--format hf and gguf, and written alone by --format peft.",
       "witan export --run my-run --format hf exported\n"
       "witan export --run my-run --format gguf exported.gguf --dtype q8_0\n"
       "witan export --run my-run --format hf exported-bf16 --dtype bfloat16 --max-shard-size 2GB"},
      [&context, args] { return export_run(context, *args); });
  std::vector<std::string> types;
  for (const Architecture& one : architectures()) types.emplace_back(one.model_type);
  add_option(*command, "--run", args->run, "Name of the run (default: the latest)").type_name("NAME");
  add_option(*command, "--runs-folder", args->runs_folder, "Folder of all runs").type_name("FOLDER").show_default();
  add_option(*command, "--format", args->format,
             "hf: Hugging Face's safetensors; gguf: llama.cpp's file; peft: the adapters alone")
      .one_of({"hf", "gguf", "peft"})
      .show_default();
  add_flag(*command, "--merge-lora", args->merge_lora,
           "Merge LoRA adapters, as --format hf and gguf do anyway; an error where there are none");
  add_option(*command, "out", args->out, "Folder, or file, to write").type_name("OUT").required();
  add_option(*command, "--architecture", args->architecture,
             "model_type of the folder (default: as imported, else the first that can be this model)")
      .one_of(types);
  add_option(*command, "--dtype", args->dtype, "Dtype of all tensors (default: as imported, else the model's)")
      .one_of({"float32", "bfloat16", "float16", "float64", "q8_0"});
  add_option(*command, "--max-shard-size", args->max_shard_size, "Largest file, unless one tensor is larger")
      .type_name("SIZE")
      .show_default();
}

}  // namespace witan::cli

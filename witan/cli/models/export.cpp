// witan export: writes a run's weights as files for other programs.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/models/calibration.h"
#include "witan/cli/models/exported_run.h"
#include "witan/cli/models/gguf.h"
#include "witan/cli/models/unfinished.h"
#include "witan/convert/adapters.h"
#include "witan/convert/gguf/gguf_export.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/ledger.h"
#include "witan/convert/megatron/megatron_export.h"
#include "witan/train/weights/initial_weights.h"

namespace witan::cli {
namespace {

bool is_there(const fs::path& path) {
  std::error_code none;
  return fs::exists(path, none);
}

// A quantised type of --dtype, in the formats that have it.
struct QuantisedType {
  std::string_view name;
  std::optional<Element> gguf = {};
  bool mixed = false;  // GgufExport::mixed
  std::optional<HfQuantisation> hf = {};
};
constexpr QuantisedType kQuantisedTypes[] = {{"q8_0", Element::q8_0},
                                             {"q6_k", Element::q6_k},
                                             {"q5_k", Element::q5_k},
                                             {"q4_k", Element::q4_k},
                                             {"q4_k_m", Element::q4_k, true},
                                             {"mxfp4", Element::mxfp4, false, HfQuantisation::mxfp4},
                                             {"fp8", {}, false, HfQuantisation::fp8},
                                             {"int8", {}, false, HfQuantisation::int8},
                                             {"int4", {}, false, HfQuantisation::int4}};

// Null if --dtype is not a quantised type.
const QuantisedType* quantised_type(const ExportArgs& args) {
  const auto* found = std::ranges::find(kQuantisedTypes, args.dtype, &QuantisedType::name);
  return found == std::end(kQuantisedTypes) ? nullptr : found;
}

std::optional<Element> wanted_element(const ExportArgs& args) {
  if (args.dtype.empty()) return std::nullopt;
  if (const QuantisedType* quantised = quantised_type(args)) return quantised->gguf;
  return *element_of(dtype_from_name(args.dtype));
}

fs::path ledger_path(const ExportedRun& run) {
  return run.folder / "export-ledger.json";
}

void write_ledger(const ExportedRun& run, const Ledger& ledger) {
  write_file_atomically(ledger_path(run), ledger.text());
}

// Writes a new folder with write(out), which returns the ledger of its tensors.
template <class Write>
Ledger write_folder(const ExportedRun& run, const fs::path& out, const Write& write) {
  UnfinishedFolder unfinished(out);
  std::error_code none;
  require<ConfigError>(!is_there(out) || fs::is_empty(out, none), out.string(),
                       " is not empty: give a folder that does not exist yet, so that nothing of another model stays");
  unfinished.begin();
  const Ledger ledger = write(out);
  write_ledger(run, ledger);
  unfinished.finish();
  return ledger;
}

Ledger export_as_hf(const ExportedRun& run, const ExportArgs& args, const Architecture& architecture,
                    CheckpointWeights& weights, std::FILE* err) {
  HfExport how{&architecture, style_for(run, architecture), {}, {}, {}, parse_bytes(args.max_shard_size)};
  if (!how.style.prefix.empty()) how.side = run.folder / kCompanionFolder / kSideTensors;
  if (const QuantisedType* quantised = quantised_type(args)) {
    how.quantisation = quantised->hf;
    how.style.storage = quantised->hf == HfQuantisation::mxfp4 ? ExpertStorage::mxfp4 : default_storage(architecture);
  } else {
    how.dtype = wanted_element(args);
  }
  require<ConfigError>(how.shard_bytes > 0, "--max-shard-size ", args.max_shard_size,
                       ": a file must hold something, as of 5GB");
  if (run.ledger)
    for (const LedgerEntry& entry : run.ledger->source) how.dtypes[entry.name] = entry.dtype;
  std::optional<Calibration> calibration;
  if (!args.calibrate.empty()) {
    calibration.emplace(args, err);
    how.feedback = calibration->feedback();
  }
  return write_folder(run, args.out, [&](const fs::path& out) {
    Ledger ledger = export_weights(weights, how, out);
    if (calibration) ledger.calibration_tokens = calibration->tokens();
    write_companions(run, architecture, how, quantization_config(weights, how), out, ledger);
    return ledger;
  });
}

Ledger export_as_gguf(const ExportedRun& run, const ExportArgs& args, const Architecture& architecture,
                      CheckpointWeights& weights) {
  GgufExport how{&architecture, run.config.data.seq_length};
  how.more = gguf_vocabulary_of(run);
  keep_image_keys(run, architecture, how.more);
  how.type = wanted_element(args);
  if (const QuantisedType* quantised = quantised_type(args)) how.mixed = quantised->mixed;
  if (run.ledger && run.ledger->from == "gguf")
    for (const LedgerEntry& entry : run.ledger->source) how.types[entry.name] = entry.dtype;
  require<ConfigError>(!is_there(args.out), args.out, " exists already: give a file that does not");
  return export_gguf(weights, how, args.out, [&](const Ledger& ledger) { write_ledger(run, ledger); });
}

Ledger export_as_megatron(const ExportedRun& run, const ExportArgs& args, CheckpointWeights& weights) {
  require<UsageError>(args.architecture.empty(), "--architecture is of --format hf and gguf: leave it out");
  const MegatronExport how{wanted_element(args), run.config.data.seq_length};
  return write_folder(run, args.out, [&](const fs::path& out) { return export_megatron(weights, how, out); });
}

// Whether the imported model has towers beside its text decoder, which its config.json describes.
bool reads_images(const ExportedRun& run) {
  const fs::path path = run.folder / kCompanionFolder / kHfConfig;
  if (!is_there(path)) return false;
  const Json config = parse_json(read_file(path), path.string());
  return config.contains(kTextConfig) || config.contains("vision_config");
}

Ledger export_as_peft(const ExportedRun& run, const ExportArgs& args, const Architecture& architecture,
                      CheckpointWeights& weights) {
  require<UsageError>(!args.merge_lora,
                      "--merge-lora makes one model of the base and its adapters, and --format peft writes the "
                      "adapters alone: leave one of them out");
  require<UsageError>(args.dtype.empty(), "--dtype: adapters are written in the run's dtype, ", run.config.model.dtype);
  require<ConfigError>(!reads_images(run),
                       "--format peft: the run is a part of a model that reads images, whose modules have other names "
                       "in PEFT: merge the adapters with --format hf --merge-lora");
  return write_folder(run, args.out, [&](const fs::path& out) {
    const TrainConfig& train = run.config.train;
    return export_peft(weights, architecture, base_model_of(train.init_from, train.init_base), out);
  });
}

void check_args(const ExportedRun& run, const ExportArgs& args) {
  require<UsageError>(!args.merge_lora || run.has_adapters(), "--merge-lora: the run ", run.folder.filename().string(),
                      " has no adapters (lora_rank = 0); leave it out");
  if (const QuantisedType* quantised = quantised_type(args)) {
    const bool has = args.format == "gguf" ? quantised->gguf.has_value() : args.format == "hf" && quantised->hf;
    require<UsageError>(has, "--dtype ", args.dtype, " is a type of ",
                        quantised->gguf ? "GGUF files: add --format gguf" : "Hugging Face folders: add --format hf");
  }
  require<UsageError>(args.calibrate.empty() || (args.format == "hf" && args.dtype == "int4"),
                      "--calibrate chooses the roundings of int4: add --format hf --dtype int4, or leave it out");
  const int64_t modules = run.config.model.mtp_num_layers;
  require<UsageError>(!args.without_mtp || modules > 0, "--without-mtp: the run ", run.folder.filename().string(),
                      " has no modules of multi-token prediction (mtp_num_layers = 0); leave it out");
  require<ConfigError>(args.format != "megatron" || modules == 0 || args.without_mtp, "mtp_num_layers = ", modules,
                       ": modules of multi-token prediction are not written for Megatron-LM; --without-mtp leaves them "
                       "out");
}

void print_exported(Context& context, const ExportedRun& run, const ExportArgs& args, const Ledger& ledger,
                    const std::string& model) {
  const ModelConfig& config = run.config.model;
  const int64_t padding = config.padded_vocab_size() - config.vocab_size;
  fmt::print(context.out, "{}", ledger.summary());
  if (run.has_adapters())
    fmt::print(context.out, "adapters     {} of rank {}, {}\n", adapters_of(config).size(), config.lora_rank,
               args.format == "peft" ? "to be loaded on the base model"
                                     : "merged: W + (alpha / rank) B A in float32, rounded once");
  if (padding > 0 && args.format != "peft")
    fmt::print(context.out, "padding      {} rows of the padded vocabulary are not exported\n", padding);
  fmt::print(context.out, "step         {}\nmodel        {}\nledger       {}\n{:<13}{}\n", run.checkpoint.step, model,
             ledger_path(run).string(), args.format == "gguf" ? "file" : "folder", args.out);
}

ExitCode export_run(Context& context, const ExportArgs& args) {
  const ExportedRun run = open_exported(args, context.err);
  check_args(run, args);
  CheckpointWeights weights(run.checkpoint, run.config.model);
  if (run.has_adapters() && args.format != "peft") weights.merge_adapters();
  if (args.without_mtp) weights.leave_out_mtp();
  Ledger ledger;
  std::string model = "a release checkpoint of Megatron-Core (torch_dist)";
  if (args.format == "megatron") {
    ledger = export_as_megatron(run, args, weights);
  } else {
    const Architecture& architecture = architecture_of(run, args);
    model = cat(architecture.name, " (",
                args.format == "gguf" ? gguf_architecture(architecture) : std::string(architecture.model_type), ")");
    ledger = args.format == "gguf"   ? export_as_gguf(run, args, architecture, weights)
             : args.format == "peft" ? export_as_peft(run, args, architecture, weights)
                                     : export_as_hf(run, args, architecture, weights, context.err);
  }
  print_exported(context, run, args, ledger, model);
  return ExitCode::done;
}

}  // namespace

void add_export(CLI::App& app, Context& context) {
  const auto args = std::make_shared<ExportArgs>();
  CLI::App* command = add_command(
      app, context,
      {"export", "Write a run's weights for other programs",
       "Takes the newest intact checkpoint, or the one that --run names, whatever layout wrote it. An imported run "
       "gives back the tensors that it "
       "was made of, byte for byte, and the files that came with them. LoRA adapters are merged into their matrices by "
       "the other formats, and written alone by --format peft.",
       "witan export --run my-run --format hf exported\n"
       "witan export --run my-run@best --format hf exported-best\n"
       "witan export --run my-run --format gguf exported.gguf --dtype q4_k_m\n"
       "witan export --run my-run --format hf exported-int4 --dtype int4\n"
       "witan export --run my-run --format hf exported-gptq --dtype int4 --calibrate my.txt\n"
       "witan export --run my-run --format megatron for-megatron\n"
       "witan export --run my-run --format hf exported-bf16 --dtype bfloat16 --max-shard-size 2GB"},
      [&context, args] { return export_run(context, *args); });
  std::vector<std::string> types;
  for (const Architecture& one : architectures()) types.emplace_back(one.model_type);
  std::vector<std::string> dtypes = {"float32", "bfloat16", "float16", "float64"};
  for (const QuantisedType& one : kQuantisedTypes) dtypes.emplace_back(one.name);
  add_option(*command, "--run", args->run,
             "Name of the run (default: the latest), or of one of its checkpoints: NAME@best, NAME@STEP")
      .type_name("NAME");
  add_runs_folder(*command, args->runs_folder);
  add_option(*command, "--format", args->format,
             "hf: Hugging Face's safetensors; gguf: llama.cpp's file; megatron: Megatron-Core's torch_dist; peft: "
             "the adapters alone")
      .one_of({"hf", "gguf", "megatron", "peft"})
      .show_default();
  add_flag(*command, "--merge-lora", args->merge_lora,
           "Merge LoRA adapters, which all formats except peft do anyway; an error if there are none");
  add_flag(*command, "--without-mtp", args->without_mtp,
           "Leave out the modules of multi-token prediction; an error if there are none");
  add_option(*command, "out", args->out, "Folder, or file, to write").type_name("OUT").required();
  add_option(
      *command, "--architecture", args->architecture,
      "model_type of the folder, such as llama or qwen3_moe; an unknown one lists all (default: as imported, else "
      "the first that can be this model)")
      .one_of(types)
      .type_name("TYPE");
  add_option(
      *command, "--dtype", args->dtype,
      "Dtype of all tensors (default: as imported, else the model's); quantised: q8_0 to q4_k_m in GGUF files, fp8, "
      "int8 and int4 in folders, mxfp4 in both")
      .one_of(dtypes);
  add_option(*command, "--calibrate", args->calibrate,
             "Choose the roundings of int4 by GPTQ, with the model's inputs on this text: a file or folder of text or "
             "rows (repeatable)")
      .type_name("FILE")
      .one_argument();
  add_option(*command, "--max-shard-size", args->max_shard_size, "Largest file, unless one tensor is larger")
      .type_name("SIZE")
      .show_default();
}

}  // namespace witan::cli

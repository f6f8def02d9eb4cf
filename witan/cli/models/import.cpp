// witan import: makes a run from a model that another program has trained.
#include "witan/convert/import.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/models/gguf.h"
#include "witan/cli/models/unfinished.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/convert/hf/hf_side.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/ledger.h"
#include "witan/convert/megatron/megatron_weights.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/resolve.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/state/run_start.h"
#include "witan/train/state/train_state.h"

namespace witan::cli {
namespace {

struct ImportArgs {
  std::string folder, run, runs_folder = "runs", tokenizer;
  bool without_mtp = false;
};

// The configuration of an imported run, which describes only the model.
RunConfig imported_config(const ImportArgs& args, const ForeignWeights& weights) {
  RunConfig config;
  config.model = weights.model();
  config.train.run = args.run;
  config.train.runs_folder = args.runs_folder;
  const int64_t most = config.model.attention.most_positions().value_or(weights.positions());
  config.data.seq_length = std::max<int64_t>(std::min(weights.positions(), most), 1);
  return resolve(config, {});
}

// The folder's tokenizer.json; nothing, with a message, if Witan cannot read it.
std::optional<std::string> readable_tokenizer(const fs::path& folder, const ModelConfig& model, std::FILE* err) {
  const fs::path path = folder / "tokenizer.json";
  std::error_code none;
  std::string why = "there is none";
  if (fs::is_regular_file(path, none)) try {
      const Tokenizer tokenizer = Tokenizer::load(path);
      require<DataError>(tokenizer.vocab_size() <= model.vocab_size, "it has ", tokenizer.vocab_size(),
                         " entries, the model ", model.vocab_size);
      return read_file(path);
    } catch (const Error& error) {
      why = error.what();
    }
  fmt::print(err,
             "warning: no tokenizer.json of {} can be used: {}. `witan generate` and `witan eval` need one: give it "
             "with --tokenizer FILE\n",
             folder.string(), why);
  return std::nullopt;
}

// The file of --tokenizer, in any format that Witan reads, as a tokenizer.json.
std::string given_tokenizer(const fs::path& path, const ModelConfig& model) {
  const TokenizerSpec spec = read_tokenizer(path);
  const int64_t entries = Tokenizer(spec).vocab_size();
  require<DataError>(entries <= model.vocab_size, "--tokenizer ", path.string(), " has ", entries,
                     " entries, more than the model's ", model.vocab_size, ": it is another model's");
  return write_tokenizer_json(spec);
}

std::unique_ptr<ForeignWeights> open_foreign(const ImportArgs& args) {
  const MtpLayers mtp = args.without_mtp ? MtpLayers::leave_out : MtpLayers::take;
  if (is_gguf_model(args.folder)) return std::make_unique<GgufWeights>(args.folder, mtp);
  if (is_megatron_folder(args.folder)) return std::make_unique<MegatronWeights>(args.folder);
  return std::make_unique<HfWeights>(args.folder, mtp);
}

// Copies the files next to the weights, which exports need.
void keep_companions(const ForeignWeights& weights, const fs::path& folder, Ledger& ledger) {
  if (const auto* hf = dynamic_cast<const HfWeights*>(&weights)) {
    ledger.files = copy_companions(hf->folder().path(), hf->folder().companions(), folder);
    keep_side_tensors(*hf, folder);
  }
  if (const auto* gguf = dynamic_cast<const GgufWeights*>(&weights)) write_companions_of_gguf(*gguf, folder);
}

// The origin of the run, which `witan runs` shows.
std::string origin_of(const ImportArgs& args, const Ledger& ledger) {
  const char* const kind = ledger.from == "gguf"       ? "GGUF model "
                           : ledger.from == "megatron" ? "Megatron-LM checkpoint "
                                                       : "Hugging Face folder ";
  return origin_line(kind + clipped(args.folder, 200));
}

ExitCode import_model(Context& context, const ImportArgs& args) {
  const auto source = open_foreign(args);
  ForeignWeights& weights = *source;
  const RunConfig config = imported_config(args, weights);
  const auto* gguf = dynamic_cast<const GgufWeights*>(source.get());
  const auto tokenizer = !args.tokenizer.empty() ? given_tokenizer(args.tokenizer, config.model)
                         : gguf                  ? tokenizer_of_gguf(*gguf, context.err)
                                                 : readable_tokenizer(args.folder, config.model, context.err);
  const RunFolder folder(args.runs_folder, args.run);
  UnfinishedFolder unfinished(folder.path(), ".lock");
  require<ConfigError>(folder.empty(), "there is a run ", folder.path().string(),
                       " already: import under another name (--run NAME), or remove that folder");
  unfinished.begin();
  std::vector<std::pair<std::string, std::string>> files = {{"config.toml", config_to_save(config)}};
  if (tokenizer) files.emplace_back("tokenizer.json", *tokenizer);
  Json scalars = TrainState().to_json();
  scalars[kImported] = true;
  auto [ledger, non_finite] = import_weights(weights, folder.checkpoints(), files, scalars);
  if (const std::string warning = describe(non_finite, "the weights"); !warning.empty())
    fmt::print(context.err, "warning: {}\n", warning);
  keep_companions(weights, folder.path() / kCompanionFolder, ledger);
  write_file_atomically(folder.path() / kLedgerName, ledger.text());
  if (tokenizer) write_file_atomically(folder.tokenizer(), *tokenizer);
  write_file_atomically(folder.config(), origin_of(args, ledger) + config_to_save(config, true));
  unfinished.finish();
  fmt::print(context.out, "{}dtype        {}\nvocabulary   {} entries{}\nledger       {}\nrun          {}\n",
             ledger.summary(), config.model.dtype, config.model.vocab_size, tokenizer ? "" : ", without a tokenizer",
             (folder.path() / kLedgerName).string(), folder.path().string());
  return ExitCode::done;
}

}  // namespace

void add_import(CLI::App& app, Context& context) {
  const auto args = std::make_shared<ImportArgs>();
  CLI::App* command = add_command(
      app, context,
      {"import", "Make a run of another program's model",
       "Reads a Hugging Face folder (config.json and safetensors files), a GGUF file, or a checkpoint of Megatron-LM "
       "(torch_dist, or legacy), and writes a run with its weights, which `witan generate`, `witan eval` and `witan "
       "train "
       "--init-from` use. Every tensor is accounted for in the run's ledger.json; one without a place is an error. "
       "docs/convert.md lists the architectures.",
       "witan import model-folder --run base\n"
       "witan import model.gguf --run small\n"
       "witan import model-folder --run base --runs-folder my-runs"},
      [&context, args] { return import_model(context, *args); });
  add_option(*command, "folder", args->folder,
             "Folder with config.json and safetensors files, a .gguf file, or a folder of a Megatron-LM checkpoint")
      .type_name("FOLDER|FILE")
      .required();
  add_option(*command, "--run", args->run, "Name of the new run").type_name("NAME").required();
  add_runs_folder(*command, args->runs_folder);
  add_option(
      *command, "--tokenizer", args->tokenizer,
      "Tokenizer of the run, instead of the model's own: a tokenizer.json, tekken.json, .model, .tiktoken or .gguf "
      "file, or a folder with one")
      .type_name("FILE");
  add_flag(*command, "--without-mtp", args->without_mtp,
           "Leave out the layers of multi-token prediction, which otherwise become MTP modules");
}

}  // namespace witan::cli

// Rules for flags that say where a run writes and what it starts from: --save, --load, --pretrained-checkpoint,
// --finetune and others. They mean what they mean in Megatron-LM (megatron/training/checkpointing.py), with one
// exception: the same command given again resumes the run in --save, where Megatron-LM would start again from the
// folder of --load.
#include <fmt/format.h>

#include <optional>
#include <string>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/compat/megatron_rules.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/megatron/megatron_folder.h"

namespace witan::cli::rules {
namespace {

// A run can begin with the contents of a folder: checkpoints of a run of Witan or of Megatron-LM, or other weights.
enum class Holds : uint8_t { nothing, own_run, megatron, weights };

Holds held_by(const std::string& path) {
  std::error_code none;
  if (!step_folders(fs::path(path) / "checkpoints").empty()) return Holds::own_run;
  if (is_megatron_folder(path)) return Holds::megatron;
  const bool others = is_hf_folder(path) || is_adapter_folder(path) || is_gguf_model(path) ||
                      fs::is_regular_file(fs::path(path) / kManifestName, none);
  return others ? Holds::weights : Holds::nothing;
}

fs::path plain(const std::string& path) {
  return (fs::path(path) / "").lexically_normal();
}

// The folder of checkpoints that a run starts from, and how it uses them.
struct Source {
  std::string folder;
  bool weights_alone = false;
};

bool names_its_own(const MegatronSettings& settings) {
  const std::string *save = settings.value_of("--save"), *load = settings.value_of("--load");
  return save && load && plain(*save) == plain(*load);
}

bool resumes(const MegatronSettings& settings) {
  const std::string* save = settings.value_of("--save");
  return save && held_by(*save) == Holds::own_run;
}

// Whether --load names checkpoints other than the run's own.
bool loads_others(const MegatronSettings& settings) {
  const std::string* load = settings.value_of("--load");
  return load && !names_its_own(settings) && held_by(*load) != Holds::nothing;
}

// Refuses folders without which Megatron-LM would stop, or would silently train from random weights.
std::optional<Source> source_of(const GivenFlag& given, const MegatronSettings& settings) {
  const std::string *load = settings.value_of("--load"), *before = settings.value_of("--pretrained-checkpoint");
  const auto refuse = [&](const char* flag, const std::string& folder, const char* why) {
    GivenFlag{flag, {folder}, given.origin}.refuse(why);
  };
  if (loads_others(settings)) {
    const bool release = is_megatron_release(*load) && !settings.has("--ckpt-step");
    return Source{*load, release || settings.has("--finetune")};
  }
  if (before) {
    if (held_by(*before) == Holds::nothing && !resumes(settings))
      refuse("--pretrained-checkpoint", *before, "has no checkpoint: name a folder with one");
    return Source{*before, true};
  }
  if (load && !names_its_own(settings))
    refuse("--load", *load,
           "has no checkpoint, without which Megatron-LM would train from random weights: name a folder with one, or "
           "leave --load out for random weights");
  return std::nullopt;
}

// Decides what a run starts from, for each of the flags, since they do so together.
void begin_with(const GivenFlag& given, MegatronSettings& settings) {
  const auto source = source_of(given, settings);
  if (!source) {
    if (!settings.has("--finetune")) return;
    if (!resumes(settings)) return settings.ignore(given, "there is no checkpoint to take weights from");
    given.refuse(
        "Megatron-LM would begin again at step 0 over the checkpoints of --save: give --save a folder of its own, and "
        "--load this one");
  }
  if (resumes(settings) && !names_its_own(settings))
    settings.ignore(given, "the run in --save resumes from its own checkpoints");
  const Holds held = held_by(source->folder);
  if (!source->weights_alone && held != Holds::own_run && !resumes(settings))
    given.refuse(cat(clipped(source->folder),
                     " is not a run of Witan: its weights are read, but not the step, samples and optimizer with which "
                     "Megatron-LM would go on. Add --finetune to train from its weights at step 0"));
  std::string from = plain(source->folder).parent_path().string();
  if (settings.value_of("--ckpt-step")) {
    const int64_t step = settings.count_of("--ckpt-step", given);
    from += held == Holds::own_run ? fmt::format("@{}", step) : fmt::format("/iter_{:07}", step);
  }
  settings.set("init_from", from, given);
  if (!source->weights_alone) settings.set("init_state", "training", given);
}

}  // namespace

void save(const GivenFlag& given, MegatronSettings& settings) {
  fs::path folder = fs::path(given.value()).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // a/b/ is a/b
  const std::string name = folder.filename().string();
  if (name.empty() || name == "." || name == "..")
    given.refuse("must end in a name, which becomes the name of the run");
  if (is_megatron_folder(folder))
    given.refuse(
        "holds checkpoints of Megatron-LM, beside which Witan writes none: give --save another folder, and --load this "
        "one with --finetune, which trains from its weights");
  settings.set("run", name, given);
  settings.set("runs_folder", folder.has_parent_path() ? folder.parent_path().string() : ".", given);
}

void load(const GivenFlag& given, MegatronSettings& settings) {
  const std::string* save = settings.value_of("--save");
  if (settings.has("--exit-on-missing-checkpoint") && names_its_own(settings) && held_by(*save) == Holds::nothing)
    given.refuse("has no checkpoint, and --exit-on-missing-checkpoint asks for one");
  begin_with(given, settings);
}

void pretrained_checkpoint(const GivenFlag& given, MegatronSettings& settings) {
  if (loads_others(settings)) return settings.ignore(given, "--load has a checkpoint");
  begin_with(given, settings);
}

void finetune(const GivenFlag& given, MegatronSettings& settings) {
  if (!settings.has("--load") && !settings.has("--pretrained-checkpoint") && !resumes(settings))
    given.refuse(
        "names no weights to train from, and Megatron-LM would train from random ones: add --load FOLDER, or leave it "
        "out");
  begin_with(given, settings);
}

void ckpt_step(const GivenFlag& given, MegatronSettings& settings) {
  if (!source_of(given, settings))
    given.refuse(
        "a run resumes from its newest checkpoint: give --load its folder and --save another one, whose run "
        "continues from that step");
  settings.count_of("--ckpt-step", given);
}

// The flag concerns the checkpoint of --load; a run that resumes from its own checkpoint keeps its optimizer state.
void no_load_optim(const GivenFlag& given, MegatronSettings& settings) {
  const auto source = source_of(given, settings);
  if (source && source->weights_alone) return settings.ignore(given, "weights alone are taken");
  if (source && resumes(settings)) return settings.ignore(given, "the run in --save resumes with its own state");
  settings.set("no_load_optim", "true", given);
}

}  // namespace witan::cli::rules

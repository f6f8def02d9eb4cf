// witan replay: recomputes a step that was not finite, or a spike, from the batch and weights that the run saved.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/comm/threads/threads.h"
#include "witan/planner/plan.h"
#include "witan/train/loop/anomaly.h"
#include "witan/train/step/device.h"
#include "witan/train/step/features/loss_scaling.h"
#include "witan/train/weights/kept_reference.h"

namespace witan::cli {
namespace {

struct ReplayArgs {
  std::string folder;
  RunArgs run;  // only its threads are used
};

// Prints what the run recorded about the step.
void print_recorded(std::FILE* out, const RecordedAnomaly& recorded) {
  fmt::print(out, "step         {} ({}), {} micro-batches\n", recorded.step,
             recorded.about.value("what", std::string("?")), recorded.batches.size());
  fmt::print(out, "recorded     loss {}, gradient norm {}\n", recorded.about.value("loss", std::string("?")),
             recorded.about.value("gradient_norm", std::string("?")));
  fmt::print(out, "             {}\n", recorded.about.value("text", std::string()));
}

void print_list(std::FILE* out, const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return fmt::print(out, "{:<13}all finite\n", title);
  for (size_t i = 0; i < lines.size(); ++i) fmt::print(out, "{:<13}{}\n", i == 0 ? title : "", lines[i]);
}

// Recomputes the step on one rank, which holds all weights.
void replay_on(std::FILE* out, const RecordedAnomaly& recorded, const fs::path& run, Stream& stream,
               const Groups& groups) {
  Engine engine(stream, groups, recorded.config);
  std::vector<StateTensor> weights = engine.state();
  std::erase_if(weights, [](const StateTensor& one) {
    return one.kind != StateTensor::Kind::value && one.kind != StateTensor::Kind::buffer;
  });
  stream.wait();
  load_tensors(recorded.checkpoint, weights, Extra::allow);
  if (Reference* const reference = engine.reference(); reference && reference->has_weights())
    load_tensors(require_kept_reference(run), reference->state());
  if (auto* scaling = engine.feature<LossScaling>()) {
    LossScaler::State scale = scaling->scaler().read();
    scale.scale = recorded.about.value("loss_scale", 0.0);
    scaling->scaler().restore(scale);
  }
  print_list(out, "weights", engine.non_finite_values());
  const StepResult result = engine.step(recorded.batches, recorded.step, recorded.updates);
  fmt::print(out, "again        loss {}, gradient norm {}\n", unsigned_nan(result.loss),
             unsigned_nan(result.gradient_norm));
  if (!result.skipped || result.spike) {
    fmt::print(out, "first        all values were finite\n");
    return;
  }
  print_list(out, "gradients", engine.non_finite_gradients());
  const auto first = engine.find_non_finite(recorded.batches, recorded.step, recorded.updates, result);
  if (first)
    fmt::print(out, "first        {} of micro-batch {}: {}\n", name_of(first->phase), first->micro_batch, first->what);
  else
    fmt::print(out, "first        computed once more, all values were finite: this machine's memory is at fault\n");
}

ExitCode replay_command(Context& context, const ReplayArgs& args) {
  RecordedAnomaly recorded = open_anomaly(args.folder);
  print_recorded(context.out, recorded);
  const int threads = resolved_threads(args.run);  // the size of kernels' scratch depends on it
  recorded.config = recorded.config.with([&](RunConfig& config) { config.parallel.threads = threads; });
  const int64_t bytes = make_plan(recorded.config).arena_bytes();
  ThreadWorld world(1);
  world.run([&](int rank) {
    ThreadPool pool(threads);
    Stream stream({}, reserve_arena({}, bytes), pool);
    const Layout layout(recorded.config->parallel, 1, recorded.config->model.moe.num_experts);
    const Groups groups = make_groups(world, layout, rank, stream, sums_of(recorded.config));
    const fs::path folder = fs::absolute(args.folder).lexically_normal();
    const fs::path of_step = folder.has_filename() ? folder : folder.parent_path();
    replay_on(context.out, recorded, of_step.parent_path().parent_path(), stream, groups);
  });
  return ExitCode::done;
}

}  // namespace

void add_replay(CLI::App& app, Context& context) {
  auto args = std::make_shared<ReplayArgs>();
  CLI::App* command = add_command(
      app, context,
      {"replay", "Recompute a step that was not finite, or a spike",
       "Reads the folder that `witan train` wrote for such a step, RUN/anomalies/step-N, with its batch and the "
       "weights before it, computes the step on one CPU rank, and prints where the first value that is not "
       "finite comes up: in the forward or the backward of which module. Nothing is written.",
       "witan replay runs/default/anomalies/step-300"},
      [args, &context] { return replay_command(context, *args); });
  add_option(*command, "folder", args->folder, "RUN/anomalies/step-N").type_name("").required();
  add_threads(*command, args->run);
}

}  // namespace witan::cli

// The events of metrics.jsonl, as structs and as lines of JSON. The format's page is docs/formats/metrics.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "witan/report/events/step_scalars.h"

namespace witan {

// The model, its data and the machine; the first line of a file.
struct RunEvent {
  std::string name;
  std::string started;  // UTC, ISO 8601
  std::string config_hash;
  int64_t world_size = 1;  // ranks
  int64_t parameters = 0;
  int64_t active_parameters = 0;  // active per token
  int64_t tokens_per_step = 0;
  int64_t total_steps = 0;
  double ceiling_gflops = 0;               // peak GFLOP/s of the machine in a plain matrix product; 0: not measured
  std::optional<std::string> layout = {};  // with several ranks: the mesh in the syntax of --mesh
};

// Peak bytes of one rank by kind, as planned before the run.
struct MemoryEvent {
  int64_t rank = 0;
  std::map<std::string, int64_t> tags;
  int64_t peak = 0;  // of the arena that holds them: the highest address ever in use
};

// The memory as the arena measured it at the end of the run.
struct MeasuredMemoryEvent : MemoryEvent {};

// One optimizer step. The optional fields are only present in MoE models.
struct StepEvent {
  int64_t step = 0;                     // counted from 1
  double loss = 0;                      // cross entropy, nats per token
  std::vector<double> mtp_losses = {};  // of the step, of each module of multi-token prediction; empty: there is none
  double lr = 0;
  double grad_norm = 0;      // before clipping
  StepScalars scalars = {};  // figures that some runs or steps have (report/events/step_scalars.h)
  std::optional<double> load_balancing_loss;
  std::optional<double> z_loss;
  double tokens_per_s = 0;
  double gflops = 0;         // GFLOP/s of the model's own arithmetic, over all ranks
  double ceiling_share = 0;  // gflops over the measured ceiling, 0 to 1
  double data_wait_s = 0;    // part of step_s
  double step_s = 0;
  // Parts of step_s on rank 0, where the host sees them: not of a recorded step of a GPU. The third is in part beside
  // the second.
  std::optional<double> forward_s = {}, backward_s = {}, reduction_s = {}, optimizer_s = {};
  std::optional<double> load_max_over_mean;   // busiest expert over the mean, worst layer
  std::optional<double> dropped_share;        // of assignments, 0 to 1; where experts have a capacity
  std::map<std::string, double> router = {};  // what else routers record, by name, of all layers
  bool skipped = false;                       // non-finite gradients, or a spike: nothing was updated
  double elapsed_s = 0;                       // training time so far, over all resumptions
  std::optional<double> epochs = {};          // how often the dataset was read that was read most
  std::optional<int64_t> tokens = {};         // of all steps so far, where the global batch grows
};

// Whether a step has a field, or a declared scalar, under this key.
bool is_step_figure(const std::string& key);

// A statistic of routers by its name, wherever it stands: the first ones have keys of their own.
void set_router_statistic(StepEvent& event, const std::string& name, double value);
std::optional<double> router_statistic(const StepEvent& event, const std::string& name);

// The routers' records for each layer: the share of its routed tokens that each expert received, and others by name.
struct ExpertsEvent {
  int64_t step = 0;
  std::vector<int64_t> layers;            // layer number of each row of load; empty: 0, 1, 2 …
  std::vector<std::vector<double>> load;  // [layers, experts], each row sums to 1
  std::map<std::string, std::vector<std::vector<double>>> statistics = {};  // each [layers, 1 or experts]
};

// Readings of the GPUs of rank 0's machine, in the driver's order. NaN if a GPU does not report it.
struct GpusEvent {
  int64_t step = 0;
  std::vector<double> temperature;        // degrees Celsius
  std::vector<double> power;              // watts
  std::vector<double> memory_used;        // bytes, by all processes
  std::vector<int64_t> throttle_reasons;  // since the event before: NVML's bits (nvmlClocksThrottleReasons)
};

// Norms of the parts of the model, with each StepEvent.
struct LayersEvent {
  int64_t step = 0;
  std::vector<double> grad_norms;  // of each layer's gradients before clipping, MTP modules' last
  std::optional<double> embedding_grad_norm = {};
  std::optional<double> head_grad_norm = {};  // with the last norm
};

// Statistics of activations, with log_activations.
struct ActivationsEvent {
  int64_t step = 0;
  std::map<std::string, std::vector<double>> statistics = {};  // by name, of each layer; NaN: it has none
};

// An evaluation on the validation split, or on a set of valid_data.
struct EvalEvent {
  int64_t step = 0;
  double loss = 0;  // cross entropy, nats per token; of preferences the loss of a pair
  double bits_per_byte = 0;
  std::optional<std::string> set = {};  // its name; nothing: the validation split
  std::optional<double> seconds = {};   // that it took
  // Router statistics over all layers, by the names that steps have (router_statistic()); empty for dense models.
  std::map<std::string, double> router = {};
  // Of preferences: rewards, their margin, accuracy ..., by the names that steps have; bits_per_byte is 0 then.
  std::map<std::string, double> figures = {};
  std::optional<double> reward = {};  // mean, of sampled answers to held-out prompts (rollout_eval_prompts)
};

// The result of a simpler model on the same validation split.
struct BaselineEvent {
  std::string name;
  double bits_per_byte = 0;
};

// A checkpoint was completed.
struct SaveEvent {
  int64_t step = 0;
  double seconds = 0;   // until it was complete; training continued meanwhile
  double paused_s = 0;  // for which training was paused
};

// A step that was not finite or a spike, or a rank that is slow.
struct AnomalyEvent {
  int64_t step = 0;                        // after which it stands: of a rewind that of the checkpoint
  std::string what;                        // "nan", "spike", "straggler"
  std::optional<std::string> action = {};  // "skip", "rewind", "stop"
  std::optional<int64_t> at = {};          // of a rewind: the step that it follows
  std::string text;                        // a sentence for people
  std::optional<std::string> folder = {};  // of the batch and the weights, below the run's
};

// The run was resumed from the checkpoint of `step`.
struct ResumeEvent {
  int64_t step = 0;
  std::string time;  // UTC, ISO 8601
};

struct SampleEvent {
  int64_t step = 0;
  std::string prompt;
  std::string text;                  // the continuation, without the prompt
  std::optional<int64_t> seed = {};  // of the sampler
};

// Why the process stopped training: "finished", "stopped early", "stopped by a signal" (or by
// exit_interval or exit_duration_in_mins), or "failed: " and the error.
struct EndEvent {
  std::string reason;
  std::optional<double> peak_resident = {};      // peak resident bytes of the process, arenas and everything else
  std::optional<double> promised_resident = {};  // the planned bound for it

  bool failed() const { return reason.starts_with("failed: "); }
};

using Event =
    std::variant<RunEvent, MemoryEvent, StepEvent, ExpertsEvent, EvalEvent, BaselineEvent, SaveEvent, SampleEvent,
                 EndEvent, MeasuredMemoryEvent, AnomalyEvent, ResumeEvent, LayersEvent, GpusEvent, ActivationsEvent>;

// The place of a kind of event in Event.
template <class E, class... All>
consteval size_t index_of_kind(const std::variant<All...>* /*event*/) {
  size_t index = 0;
  static_cast<void>(((std::is_same_v<E, All> || (++index, false)) || ...));
  return index;
}
template <class E>
inline constexpr size_t kIndexOf = index_of_kind<E>(static_cast<const Event*>(nullptr));

// The event as one line, without the line feed. Non-finite numbers become null; invalid UTF-8 becomes U+FFFD.
std::string format_event(const Event& event);

// The event on `line`, or nothing for a kind this version does not know. null reads as NaN. Unknown keys are
// ignored, but for numbers of a step, which are scalars that no declaration shows.
// Throws CorruptionError("WHERE: why") for malformed JSON, and for missing, mistyped or out-of-range values.
std::optional<Event> parse_event(std::string_view line, std::string_view where);

// The place in Event of a line's kind, if the line begins as those of format_event() do; nothing otherwise.
std::optional<size_t> kind_of(std::string_view line);
// The step of such a line, if it stands where format_event() has it.
std::optional<int64_t> quick_step(std::string_view line);
// Whether a run may have as many events of the kind as it has steps.
constexpr bool is_frequent(size_t kind) {
  return kind == kIndexOf<StepEvent> || kind == kIndexOf<ExpertsEvent> || kind == kIndexOf<LayersEvent> ||
         kind == kIndexOf<ActivationsEvent> || kind == kIndexOf<GpusEvent>;
}

}  // namespace witan

// witan bench generate: measures generation with random weights, for several texts at a time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "witan/base/numbers/median.h"
#include "witan/base/process.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/bench/bench.h"
#include "witan/cli/train/planning.h"
#include "witan/generate/generation_batch.h"
#include "witan/model/counts.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/train/config/resolve.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

struct BenchGenerateArgs {
  RunConfigArgs config;
  std::vector<int> texts = {1, 8, 32};  // at a time
  int64_t prompt = 512, tokens = 32;
  SamplerOptions sampler = {.temperature = 0};
  bool logprobs = false, repeatable = false;
  std::string json;
};

// The measurements for one number of texts.
struct Speed {
  int64_t texts = 0;
  double prompt_s = 0, token_s = 0;  // seconds to read all prompts, and to generate a token for each text
};

// The configuration on one rank, independent of the model's training layout.
ResolvedConfig resolved(RunConfig given) {
  ParallelConfig alone;
  alone.ranks = alone.expert_model_parallel_size = 1;
  alone.device = given.parallel.device;
  alone.threads = given.parallel.threads;
  alone.cuda_graph = given.parallel.cuda_graph;
  given.parallel = alone;
  given.train.sample_tokens = given.train.sample_interval = 0;
  Facts facts = facts_of_machine();
  if (given.model.vocab_size == 0) facts.vocabulary = expected_vocabulary(given.data);
  return resolve(given, facts);
}

std::vector<GenerationRequest> requests_of(const BenchGenerateArgs& args, int64_t texts, int64_t vocabulary) {
  std::vector<GenerationRequest> requests(static_cast<size_t>(texts));
  int64_t number = 0;
  for (GenerationRequest& request : requests) {
    for (int64_t i = 0; i < args.prompt; ++i)
      request.prompt.push_back(static_cast<int32_t>((number * 7919 + i * 104729) % vocabulary));
    request.options.max_tokens = args.tokens + 1;  // reading the prompt gives the first
    request.options.sampler = args.sampler;
    request.options.sampler.seed = static_cast<uint64_t>(number++);
    if (args.logprobs) request.top_logprobs = 0;
  }
  return requests;
}

Speed measure(Stream& stream, Transformer& model, const BenchGenerateArgs& args, int64_t texts,
              const GenerationMode& mode) {
  const auto requests = requests_of(args, texts, model.config().vocab_size);
  GenerationBatch batch(stream, model, {texts, args.prompt + args.tokens + 1}, mode);
  for (const GenerationRequest& request : requests) batch.admit(request);
  Speed speed{texts};
  std::vector<double> steps;
  while (!batch.idle()) {
    const Stopwatch step;  // the tokens are on the host when step() returns
    batch.step();
    (speed.prompt_s == 0 ? speed.prompt_s : steps.emplace_back()) = step.seconds();
  }
  speed.token_s = median(steps);
  return speed;
}

// Bytes of weights that a step reads. Of the experts, only those that the tokens are expected to visit with uniform
// routing.
double weight_bytes(const ModelConfig& config, int64_t tokens) {
  const ParameterCounts counts = count_parameters(config);
  const MoeConfig& moe = config.moe;
  double visited = 0;
  if (moe.num_experts > 0) {
    const double share = static_cast<double>(moe.moe_router_topk) / static_cast<double>(moe.num_experts);
    visited = 1 - std::pow(1 - share, static_cast<double>(tokens));
  }
  // An embedding that is not the head too is read row by row.
  const int64_t rows = config.untie_embeddings_and_output_weights ? config.vocab_size * config.hidden_size : 0;
  const auto dense = static_cast<double>(counts.exact - counts.experts - counts.looked_up - rows);
  return (dense + visited * static_cast<double>(counts.experts)) * static_cast<double>(size_of(config.compute_dtype()));
}

BenchReport report_of(const ResolvedConfig& config, Device device, int threads, const BenchGenerateArgs& args,
                      const std::vector<Speed>& speeds, int64_t arena_bytes) {
  const ParameterCounts counts = count_parameters(config->model);
  BenchReport report =
      begin_report(fmt::format("generate, {} parameters, {}, prompts of {}",
                               format_count(static_cast<double>(counts.exact)), config->model.dtype, args.prompt),
                   device, threads);
  for (const Speed& speed : speeds) {
    const double bytes = weight_bytes(config->model, speed.texts), texts = static_cast<double>(speed.texts);
    report.lines.push_back({fmt::format("a token of {} text{}", speed.texts, speed.texts == 1 ? "" : "s"),
                            speed.token_s, 2 * texts * static_cast<double>(counts.active), bytes});
    const auto add = [&](const char* key, const char* label, double value, const std::string& text) {
      report.figures.push_back(
          {fmt::format("{}_{}", key, speed.texts), value, fmt::format("{}, {} at a time", label, speed.texts), text});
    };
    add("tokens_per_s", "tokens/s", texts / speed.token_s, fmt::format("{:.1f}", texts / speed.token_s));
    const double floor = bytes / report.ceilings.bytes;
    add("floor_share", "floor of reading weights", floor / speed.token_s,
        fmt::format("{:.3f} ms, {:.0f} % of a token's time", 1e3 * floor, 100 * floor / speed.token_s));
    add("prompt_tokens_per_s", "prompts, tokens/s", texts * static_cast<double>(args.prompt) / speed.prompt_s,
        fmt::format("{:.0f}", texts * static_cast<double>(args.prompt) / speed.prompt_s));
  }
  report.figures.push_back(
      {"arena_bytes", static_cast<double>(arena_bytes), "memory", format_bytes(static_cast<double>(arena_bytes))});
  return report;
}

ExitCode bench_generate(Context& context, const RunConfig& given, const BenchGenerateArgs& args) {
  const Sampler checked(args.sampler);
  const ResolvedConfig config = resolved(given);
  require_devices(config, 1);
  require_json_file(args.json);
  const Device device = device_of(config, 0);
  const Groups groups = make_meta_groups(Layout(config->parallel, 1, config->model.moe.num_experts), 0);
  ThreadPool pool(static_cast<int>(config->parallel.threads));
  const GenerationMode mode{
      .repeatable = args.repeatable, .recorded = config->parallel.cuda_graph, .cache = config->rollout.cache};
  const auto run = [&](Stream& stream) {
    Transformer model(stream, config->model, 1, groups.model_axes(config->parallel));
    const CodedUnits units(stream, model, groups, 1);
    std::vector<Speed> speeds;
    for (const int texts : args.texts) {
      require<UsageError>(texts > 0, "witan bench generate: --texts ", texts, ": at least one text at a time");
      if (!stream.is_meta()) measure(stream, model, args, texts, mode);  // warms up libraries
      speeds.push_back(measure(stream, model, args, texts, mode));
    }
    return speeds;
  };
  Stream meta({Device::Kind::meta, 0, device.kind}, Arena::meta(), pool);
  run(meta);
  const int64_t bytes = meta.arena().high_water();
  std::vector<Speed> speeds;
  {
    Stream stream(device, reserve_arena(device, bytes), pool);
    speeds = run(stream);
  }  // frees the arena, since measuring the device's ceilings needs memory
  finish_report(context, args.json,
                report_of(config, device, static_cast<int>(config->parallel.threads), args, speeds, bytes));
  return ExitCode::done;
}

}  // namespace

void add_bench_generate(CLI::App& bench, Context& context) {
  auto args = std::make_shared<BenchGenerateArgs>();
  CLI::App* command = add_command(
      bench, context,
      {"generate", "Measure generation: tokens/s, and the time to read the weights once",
       "Takes the flags of `witan train`, and uses those of the model and the device; weights are random. A "
       "token's time is the median of steps that give each text one, the logits read and the next token chosen. Its "
       "floor is the time of reading the weights that its experts and all else have, at the measured bandwidth. Tokens "
       "are the likeliest, or drawn if a temperature is given.",
       "witan bench generate --preset qwen3-30b-a3b --num-layers 12\n"
       "witan bench generate --num-layers 2 --hidden-size 64 --device cpu --texts 1,4 --prompt 16 --tokens 8\n"
       "witan bench generate --num-layers 2 --hidden-size 64 --device cpu --texts 4 --tokens 8 --temperature 1 --top-p "
       "0.95",
       Processes::one},
      [&context, args] {
        const GivenConfig given = args->config.read(context);
        return naming_sources(given, [&] { return bench_generate(context, given.config, *args); });
      });
  add_option(*command, "--texts", args->texts, "Texts at a time, with commas between several")
      .delimiter(',')
      .type_name("N")
      .show_default();
  add_option(*command, "--prompt", args->prompt, "Tokens of each prompt")
      .type_name("N")
      .range(int64_t{1}, int64_t{1} << 24)
      .show_default();
  add_option(*command, "--tokens", args->tokens, "Tokens of each text to measure")
      .type_name("N")
      .range(int64_t{1}, int64_t{1} << 24)
      .show_default();
  add_option(*command, "--temperature", args->sampler.temperature, "Sampling temperature (0: the likeliest tokens)")
      .type_name("T")
      .show_default();
  add_option(*command, "--top-k", args->sampler.top_k, "Draw from the K most likely tokens (0: all)")
      .type_name("K")
      .show_default();
  add_option(*command, "--top-p", args->sampler.top_p, "Draw from the smallest set of tokens with total probability P")
      .type_name("P")
      .show_default();
  add_option(*command, "--min-p", args->sampler.min_p,
             "Draw from tokens that are at least P times as likely as the likeliest (0: all)")
      .type_name("P")
      .show_default();
  add_flag(*command, "--logprobs", args->logprobs, "Compute the log probability of each token");
  add_flag(*command, "--repeatable", args->repeatable,
           "Compute so that log probabilities equal those of training with --batch-invariant-mode to the bit");
  add_json_file(*command, args->json);
  args->config.add(*command);
}

}  // namespace witan::cli

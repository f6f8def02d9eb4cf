// witan bench attention: measures attention without its projections, forward and backward.
#include <fmt/core.h>

#include <cmath>
#include <memory>

#include "witan/cli/bench/bench.h"
#include "witan/kernels/attention/attention.h"

namespace witan::cli {
namespace {

struct AttentionArgs {
  BenchArgs args;
  int64_t batch = 0, sequence = 0, heads = 4, kv_heads = 1, head_size = 128;
  int64_t value_head_size = 0;  // 0: head_size
  int64_t window = 0, documents = 1;
  std::string dtype;
};

// Numbers of documents of equal length along each row [B, S].
Tensor sequence_ids(Stream& stream, int64_t batch, int64_t sequence, int64_t documents) {
  if (documents == 1) return {};
  std::vector<int32_t> ids(static_cast<size_t>(batch * sequence));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) % sequence * documents / sequence);
  const Tensor out = stream.empty({batch, sequence}, DType::i32);
  stream.write(out, ids.data());
  return out;
}

void measure(Bench& bench, const AttentionArgs& s, DType dtype) {
  Stream& stream = bench.stream();
  const Shape queries{s.batch, s.sequence, s.heads, s.head_size}, keys = queries.with(2, s.kv_heads);
  const Shape results = queries.with(3, s.value_head_size), values = keys.with(3, s.value_head_size);
  const kernels::AttentionInputs in{.q = bench.normal(queries, dtype),
                                    .k = bench.normal(keys, dtype),
                                    .v = bench.normal(values, dtype),
                                    .sequence_ids = sequence_ids(stream, s.batch, s.sequence, s.documents),
                                    .scale = 1 / std::sqrt(static_cast<double>(s.head_size)),
                                    .window = s.window};
  const Tensor y = stream.empty(results, dtype), lse = stream.empty({s.batch, s.heads, s.sequence}, accumulator(dtype)),
               dy = bench.normal(results, dtype);
  const kernels::AttentionGradients to{stream.empty(queries, dtype), stream.empty(keys, dtype),
                                       stream.empty(values, dtype)};
  const auto forward = [&] { kernels::attention_forward(stream, y, lse, in); };
  const auto backward = [&] { kernels::attention_backward(stream, to, dy, y, lse, in); };
  bench.measure("forward", forward);
  bench.measure("backward", backward);
}

ExitCode bench_attention(Context& context, AttentionArgs& s) {
  const bool on_gpu = bench_device(s.args.device).kind == Device::Kind::cuda;
  if (s.batch == 0) s.batch = on_gpu ? 8 : 2;
  if (s.sequence == 0) s.sequence = on_gpu ? 2048 : 256;
  if (s.value_head_size == 0) s.value_head_size = s.head_size;
  require<UsageError>(s.heads % s.kv_heads == 0, "witan bench attention: --kv-heads ", s.kv_heads,
                      " must divide --heads ", s.heads);
  require<UsageError>(s.documents <= s.sequence, "witan bench attention: --documents ", s.documents,
                      " exceeds --sequence ", s.sequence);
  const DType dtype = bench_dtype(s.dtype, on_gpu);
  const std::string values = s.value_head_size == s.head_size ? "" : fmt::format(" and {}", s.value_head_size);
  const std::string window = s.window == 0 ? "" : fmt::format(", window of {}", s.window);
  const std::string title = fmt::format("attention, {} x {} positions, {}/{} heads of {}{}{}, {}", s.batch, s.sequence,
                                        s.heads, s.kv_heads, s.head_size, values, window, name_of(dtype));
  finish_report(context, s.args.json, run_bench(title, s.args, [&](Bench& bench) { measure(bench, s, dtype); }));
  return ExitCode::done;
}

}  // namespace

void add_bench_attention(CLI::App& bench, Context& context) {
  auto state = std::make_shared<AttentionArgs>();
  CLI::App* command = add_command(
      bench, context,
      {"attention", "Causal attention, forward and backward, without its projections",
       "FLOPs count the causal half of the scores, or its part in the window, 2 products forward and 5 backward, as if "
       "there were one document.",
       "witan bench attention\nwitan bench attention --batch 4 --sequence 8192 --heads 64 --kv-heads 8 --window 1024",
       Processes::one},
      [&context, state] { return bench_attention(context, *state); });
  add_size(*command, "--batch", state->batch, "Sequences (0: 8 on a GPU, 2 on a CPU)", 0);
  add_size(*command, "--sequence", state->sequence, "Tokens per sequence (0: 2048 on a GPU, 256 on a CPU)", 0);
  add_size(*command, "--heads", state->heads, "Query heads", 1);
  add_size(*command, "--kv-heads", state->kv_heads, "Key and value heads", 1);
  add_size(*command, "--head-size", state->head_size, "Size of a head", 1);
  add_size(*command, "--value-head-size", state->value_head_size, "Size of a head of values (0: --head-size)", 0);
  add_size(*command, "--window", state->window, "Sliding window: positions that a query sees (0: all up to its own)",
           0);
  add_size(*command, "--documents", state->documents, "Documents of equal length in each sequence", 1);
  add_dtype(*command, state->dtype);
  add_bench_args(*command, state->args);
}

}  // namespace witan::cli

#include "witan/report/progress/megatron_log.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "witan/base/text.h"

namespace witan::megatron_log {
namespace {

// As Python writes a float: the shortest digits that read back as the same number, and always a point.
std::string python_float(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string mebibytes(int64_t bytes) {
  return python_float(static_cast<double>(bytes) / (1024 * 1024));
}

}  // namespace

std::string format_time(std::time_t time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(time));
}

std::string format_interval(const Interval& i) {
  std::string line = fmt::format(" [{}] iteration {:8d}/{:8d} |", format_time(i.time), i.iteration, i.train_iters);
  line += fmt::format(" consumed samples: {:12d} |", i.consumed_samples);
  line += fmt::format(" elapsed time per iteration (ms): {:.1f} |", i.ms);
  if (i.tflops) line += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", *i.tflops);
  line += fmt::format(" learning rate: {:.6E} |", i.learning_rate);
  line += fmt::format(" global batch size: {:5d} |", i.global_batch_size);
  for (const auto& [name, mean] : i.losses)
    if (mean > 0 || mean < 0) line += fmt::format(" {}: {:.6E} |", name, mean);
  line += fmt::format(" loss scale: {:.1f} |", i.loss_scale);
  line += fmt::format(" grad norm: {:.3f} |", unsigned_nan(i.grad_norm));
  for (const auto& [key, text, value] : i.scalars.shown(&StepScalar::megatron))
    line += fmt::format(" {}{}{} |", text.label, format_value(text, unsigned_nan(value)), text.unit);
  line += fmt::format(" number of skipped iterations: {:3d} |", i.skipped);
  line += fmt::format(" number of nan iterations: {:3d} |", i.nan);
  return line;
}

std::string format_parameters(double transformer_layers, double embedding_layers) {
  const double total = transformer_layers + embedding_layers;
  // The space that Megatron-LM prints before the first number is its own.
  return fmt::format(
      "Number of parameters in transformer layers in billions: {: .2f}\n"
      "Number of parameters in embedding layers in billions: {:.2f}\n"
      "Total number of parameters in billions: {:.2f}\n"
      "Number of parameters in most loaded shard in billions: {:.4f}",
      transformer_layers / 1e9, embedding_layers / 1e9, total / 1e9, total / 1e9);
}

std::string format_theoretical_memory(double weight_and_optimizer_bytes) {
  return fmt::format("Theoretical memory footprints: weight and optimizer={:.2f} MB",
                     weight_and_optimizer_bytes / (1024 * 1024));
}

std::string format_memory(int64_t rank, int64_t iteration, const Memory& memory) {
  return fmt::format(
      "[Rank {}] (after {} iterations) memory (MB) | allocated: {} | max allocated: {} | reserved: {} | max reserved: "
      "{}",
      rank, iteration, mebibytes(memory.allocated), mebibytes(memory.max_allocated), mebibytes(memory.reserved),
      mebibytes(memory.max_reserved));
}

std::string format_buckets(const std::vector<Bucket>& buckets) {
  std::string text = fmt::format("Number of buckets for gradient all-reduce / reduce-scatter: {}", buckets.size());
  for (size_t i = 0; i < buckets.size(); ++i) {
    text += fmt::format("\nParams for bucket {} ({} elements):", i + 1, buckets[i].elements);
    for (const std::string& name : buckets[i].parameters) text += "\n\t" + name;
  }
  return text;
}

std::string format_times(const std::vector<RankTimes>& times) {
  std::string text = "(min, max) time across ranks (ms):";
  for (const RankTimes& time : times)
    if (time.max_ms > 0)
      text += fmt::format("\n    {:.<48}: ({:.2f}, {:.2f})", time.name + ' ', time.min_ms, time.max_ms);
  return text;
}

std::string format_validation(int64_t iteration, double loss) {
  const std::string line =
      fmt::format(" validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", iteration,
                  unsigned_nan(loss), std::exp(std::min(loss, 20.0)));
  const std::string rule(line.size() + 1, '-');
  return rule + '\n' + line + '\n' + rule;
}

std::string format_datetime(const std::string& event, std::time_t time) {
  return fmt::format("[{}] datetime: {} ", event, format_time(time));
}

}  // namespace witan::megatron_log

#include "witan/report/progress/log_lines.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/text.h"

namespace witan::megatron_log {
namespace {

// Formats a float like Python: the shortest digits that read back as the same number, and always a point.
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

namespace witan::nanogpt_log {
namespace {

double step_ms(const Progress& progress) {
  return 1000 * progress.seconds / static_cast<double>(std::max<int64_t>(progress.step, 1));
}

std::string times_of(const Progress& progress) {
  return fmt::format("train_time:{:.0f}ms step_avg:{:.2f}ms", 1000 * progress.seconds, step_ms(progress));
}

}  // namespace

std::string format_step(const Progress& progress) {
  return fmt::format("step:{}/{} {}", progress.step, progress.train_steps, times_of(progress));
}

std::string format_validation(const Progress& progress, double loss, std::optional<double> balance_loss) {
  const std::string times =
      balance_loss ? fmt::format("val_balance_loss:{:.4f} step_time:{:.2f}ms", *balance_loss, step_ms(progress))
                   : times_of(progress);
  return fmt::format("step:{}/{} val_loss:{:.4f} {}", progress.step, progress.train_steps, loss, times);
}

std::string format_check(const std::string& stage) {
  return fmt::format("[DEBUG({0})] Validating all parameters are in proper states..\n[DEBUG({0})] Validation passed. ✅",
                     stage);
}

}  // namespace witan::nanogpt_log

namespace witan {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// The number after "NAME: "; nothing if the field is not of this form.
std::optional<double> number_behind(std::string_view field, std::string_view name) {
  if (!field.starts_with(name) || !field.substr(name.size()).starts_with(": ")) return std::nullopt;
  const std::string digits(field.substr(name.size() + 2));
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (end == digits.c_str() || *end != '\0') return std::nullopt;
  return value;
}

std::optional<std::time_t> parse_time(std::string_view text) {
  std::tm local{};
  local.tm_isdst = -1;
  const std::string copy(text);
  const char* end = ::strptime(copy.c_str(), "%Y-%m-%d %H:%M:%S", &local);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::mktime(&local);
}

// The first job on so many ranks since the last on another number of them, according to the file's lines. Lines that
// are none of ours, a torn last one say, count for nothing.
std::optional<ProgressLog::Since> find_series(std::string_view text, int64_t ranks) {
  std::optional<ProgressLog::Since> series;
  double saved = 0;  // FLOPs done at the last checkpoint
  for (const std::string_view line : split(text, '\n')) {
    const auto fields = split(line, '\t');
    if (fields.size() < 4) continue;
    const auto world = number_behind(fields[2], "# GPUs");
    if (!world) continue;
    if (fields[3] == "Saved checkpoint" && fields.size() > 7)
      saved = number_behind(fields[7], "Floating-point operations").value_or(saved);
    if (*world != static_cast<double>(ranks)) {
      series.reset();
    } else if (fields[3] == "Starting job" && !series) {
      if (const auto time = parse_time(fields[0])) series = ProgressLog::Since{*time, saved};
    }
  }
  return series;
}

}  // namespace

ProgressLog::ProgressLog(const fs::path& path, int64_t ranks, double iteration_flops)
    : file_(path), ranks_(ranks), iteration_flops_(iteration_flops) {
  if (file_.size() > 0 && read_file(path).back() != '\n') file_.append("\n");  // a torn line stays one
}

void ProgressLog::start(std::time_t now, double batches) {
  job_ = {now, iteration_flops_ * batches};
  append(now, "Starting job");
  series_ = find_series(read_file(file_.path()), ranks_).value_or(job_);
}

void ProgressLog::saved(std::time_t now, const Done& done) {
  const double flops = iteration_flops_ * done.batches;
  const auto tflops_since = [&](const Since& since) {
    const double seconds = std::max(std::difftime(now, since.time), 1.0);  // times are whole seconds
    return (flops - since.flops) / (seconds * 1e12 * static_cast<double>(ranks_));
  };
  append(now, fmt::format("Saved checkpoint\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: "
                          "{:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}\tTokens (in billions): {:.2f}",
                          done.iteration, tflops_since(job_), tflops_since(series_), flops,
                          static_cast<double>(done.tokens) / 1e9));
}

void ProgressLog::append(std::time_t now, const std::string& text) {
  const char* job = std::getenv("SLURM_JOB_ID");
  file_.append(
      fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", megatron_log::format_time(now), job ? job : "", ranks_, text));
}

}  // namespace witan

#include "witan/train/step_report.h"

#include <utility>

#include "witan/kernels/step_report.h"
#include "witan/kernels/step_value.h"

namespace witan {
namespace {

constexpr int64_t kTotals = 2;

}  // namespace

ReportSizes report_sizes(const ModelConfig& model, int64_t micro_batches) {
  int64_t blocks = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    blocks += model.moe.is_moe_layer(layer, model.num_layers) ? 1 : 0;
  return {micro_batches, blocks, model.moe.num_experts};
}

StepReport::StepReport(Stream& stream, const Group& ranks, std::vector<int> telling, const ReportSizes& sizes)
    : sizes_(sizes),
      ranks_(ranks.size()),
      rank_(ranks.rank()),
      telling_(std::move(telling)),
      all_(stream.empty({ranks_ * values()}, DType::f64, MemoryTag::communication)),
      own_(all_.narrow(0, rank_ * values(), values())),
      stop_(stream.zeros({1}, DType::f64, MemoryTag::communication)) {}

int64_t StepReport::values() const {
  return sizes_.micro_batches * micro_batch_values() + kTotals + kernels::kStepValues + 1;
}

void StepReport::add(Stream& stream, int64_t micro_batch, const Tensor& loss, const ModelOutput& out) const {
  std::vector<Tensor> sources = {loss};
  for (const Var& balance : out.balance_losses) sources.push_back(balance.value());
  for (const Var& z : out.z_losses) sources.push_back(z.value());
  for (const Tensor& counts : out.expert_counts) sources.push_back(counts);
  kernels::collect(stream, own_.narrow(0, micro_batch * micro_batch_values(), micro_batch_values()), sources);
}

void StepReport::finish(Stream& stream, Group& ranks, const Tensor& total, const Tensor& step) const {
  const int64_t begin = sizes_.micro_batches * micro_batch_values();
  kernels::collect(stream, own_.narrow(0, begin, values() - begin), {total, step, stop_});
  ranks.all_gather(stream, all_, own_);
}

void StepReport::write_stop(Stream& stream, bool stop) const {
  const double flag = stop ? 1 : 0;
  stream.write(stop_, &flag);
}

StepReport::MicroBatch StepReport::micro_batch(const double* next) const {
  MicroBatch batch;
  const auto sum = [&](int64_t count) {
    double of = 0;
    for (int64_t i = 0; i < count; ++i) of += *next++;
    return of;
  };
  batch.loss = *next++;
  batch.balance = sum(sizes_.blocks);
  batch.z = sum(sizes_.blocks);
  for (int64_t block = 0; block < sizes_.blocks; ++block) {
    auto& counts = batch.expert_counts.emplace_back();
    for (int64_t e = 0; e < sizes_.experts; ++e) counts.push_back(static_cast<int64_t>(*next++));
  }
  return batch;
}

StepReport::Result StepReport::read(Stream& stream) const {
  std::vector<double> read(static_cast<size_t>(all_.elements()), 0.0);
  stream.read(read.data(), all_);
  Result result;
  for (const int rank : telling_)
    for (int64_t i = 0; i < sizes_.micro_batches; ++i)
      result.micro_batches.push_back(micro_batch(read.data() + rank * values() + i * micro_batch_values()));
  for (int rank = 0; rank < ranks_; ++rank) {
    const double* next = read.data() + rank * values() + sizes_.micro_batches * micro_batch_values();
    result.square_sum = *next++;
    result.zeros = *next++;
    result.step.assign(next, next + kernels::kStepValues);
    result.stop = next[kernels::kStepValues] > 0 || result.stop;
  }
  return result;
}

}  // namespace witan

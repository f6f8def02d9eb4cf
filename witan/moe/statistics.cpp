#include "witan/moe/statistics.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

double reduce(RouterStatistic::Reduce how, std::span<const double> values) {
  if (values.empty()) return 0;
  double result = values.front();
  for (const double value : values.subspan(1))
    result = how == RouterStatistic::Reduce::max ? std::max(result, value) : result + value;
  return how == RouterStatistic::Reduce::mean ? result / static_cast<double>(values.size()) : result;
}

// [micro-batches][layers] -> the value of each of a layer's elements over all micro-batches
using PerMicroBatch = std::vector<std::vector<std::vector<double>>>;
std::vector<std::vector<double>> over_micro_batches(RouterStatistic::Reduce how, const PerMicroBatch& values) {
  std::vector<std::vector<double>> layers(values.front().size());
  std::vector<double> column(values.size());
  for (size_t layer = 0; layer < layers.size(); ++layer)
    for (size_t i = 0; i < values.front()[layer].size(); ++i) {
      for (size_t m = 0; m < values.size(); ++m) column[m] = values[m][layer][i];
      layers[layer].push_back(reduce(how, column));
    }
  return layers;
}

// A mean over everything is summed micro-batch by micro-batch.
double mean_of_all(const PerMicroBatch& values) {
  double total = 0;
  for (const auto& layers : values) {
    double of_micro_batch = 0;
    for (const auto& layer : layers) of_micro_batch += layer.front();
    total += of_micro_batch;
  }
  return total / (static_cast<double>(values.size()) * static_cast<double>(values.front().size()));
}

std::optional<double> over_layers(const RouterStatistic& statistic, const std::vector<std::vector<double>>& layers) {
  if (!statistic.over_layers || statistic.shape == RouterStatistic::Shape::expert) return std::nullopt;
  std::vector<double> values;
  for (const auto& layer : layers) values.push_back(layer.front());
  return reduce(*statistic.over_layers, values);
}

}  // namespace

const Var& RouterRecord::loss(std::string_view name) const {
  const auto found = std::ranges::find(losses, name, &Loss::name);
  require<ShapeError>(found != losses.end(), "the router recorded no statistic named ", name);
  return found->value;
}

Tensor RouterRecord::value(std::string_view name) const {
  const auto found = std::ranges::find(others, name, &Other::name);
  return found != others.end() ? found->value : loss(name).value();
}

RouterRecord RouterRecord::named(const std::vector<RouterStatistic>& declared) {
  RouterRecord record;
  for (const RouterStatistic& statistic : declared) {
    if (statistic.derived) continue;
    if (statistic.loss_coefficient)
      record.losses.push_back({statistic.name, {}});
    else
      record.others.push_back({statistic.name, {}});
  }
  return record;
}

std::vector<Var> RouterRecord::values(Tape& tape, const RouterRecord& names) const {
  std::vector<Var> all;
  for (const Loss& named : names.losses) all.push_back(loss(named.name));
  for (const Other& named : names.others) all.push_back(tape.constant(value(named.name)));
  return all;
}

RouterRecord RouterRecord::with(std::span<const Var> values) const {
  assert(values.size() == losses.size() + others.size());
  RouterRecord record = *this;
  auto next = values.begin();
  for (Loss& loss : record.losses) loss.value = *next++;
  for (Other& other : record.others) other.value = (next++)->value();
  return record;
}

StatisticsLayout::StatisticsLayout(std::vector<RouterStatistic> declared, int64_t experts)
    : declared_(std::move(declared)), experts_(experts) {
  for (const RouterStatistic& statistic : declared_) values_ += size_of(statistic);
}

int64_t StatisticsLayout::size_of(const RouterStatistic& statistic) const {
  if (statistic.derived) return 0;
  return statistic.shape == RouterStatistic::Shape::expert ? experts_ : 1;
}

std::vector<Tensor> StatisticsLayout::pack(const RouterRecord& record) const {
  std::vector<Tensor> packed;
  for (const RouterStatistic& statistic : declared_) {
    if (statistic.derived) continue;
    const Tensor& value = packed.emplace_back(record.value(statistic.name));
    require<ShapeError>(value.elements() == size_of(statistic), "router statistic ", statistic.name, " has ",
                        value.elements(), " values, and was declared to have ", size_of(statistic));
  }
  require<ShapeError>(packed.size() == record.losses.size() + record.others.size(), "the router recorded ",
                      record.losses.size() + record.others.size(), " statistics and declared ", packed.size());
  return packed;
}

std::span<const double> StatisticsLayout::find(std::string_view name, std::span<const double> packed) const {
  int64_t begin = 0;
  for (const RouterStatistic& statistic : declared_) {
    const int64_t size = size_of(statistic);
    if (statistic.name == name) return packed.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
    begin += size;
  }
  throw ShapeError(cat("there is no router statistic named ", name));
}

StepStatistics::StepStatistics(const StatisticsLayout& layout, const PerMicroBatch& packed) {
  if (packed.empty() || packed.front().empty()) return;  // a dense model
  for (const RouterStatistic& declared : layout.declared()) {
    Value value{declared, {}, {}};
    const auto& derived = declared.derived;
    if (derived && derived->from == RouterStatistic::Derived::From::step) {
      const Value* source = find(derived->source);
      require<ShapeError>(source != nullptr, "router statistic ", declared.name, " is derived from ", derived->source,
                          ", which must be declared before it");
      for (const auto& layer : source->layers) value.layers.push_back({derived->compute(layer)});
      value.model = over_layers(declared, value.layers);
      values_.push_back(std::move(value));
      continue;
    }
    PerMicroBatch values(packed.size());
    for (size_t m = 0; m < packed.size(); ++m)
      for (const std::vector<double>& layer : packed[m]) {
        const auto found = layout.find(derived ? derived->source : declared.name, layer);
        values[m].push_back(derived ? std::vector{derived->compute(found)}
                                    : std::vector<double>(found.begin(), found.end()));
      }
    value.layers = over_micro_batches(declared.over_micro_batches, values);
    value.model = over_layers(declared, value.layers);
    if (value.model && declared.over_micro_batches == RouterStatistic::Reduce::mean &&
        declared.over_layers == RouterStatistic::Reduce::mean)
      value.model = mean_of_all(values);
    values_.push_back(std::move(value));
  }
}

const StepStatistics::Value* StepStatistics::find(std::string_view name) const {
  const auto found = std::ranges::find(values_, name, [](const Value& value) { return value.declared.name; });
  return found == values_.end() ? nullptr : &*found;
}

std::optional<double> StepStatistics::model(std::string_view name) const {
  const Value* value = find(name);
  return value ? value->model : std::nullopt;
}

std::vector<std::vector<int64_t>> StepStatistics::counts(std::string_view name) const {
  std::vector<std::vector<int64_t>> counts;
  if (const Value* value = find(name))
    for (const auto& layer : value->layers) counts.emplace_back(layer.begin(), layer.end());
  return counts;
}

}  // namespace witan

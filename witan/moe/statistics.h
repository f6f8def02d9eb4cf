// Statistics of routers: named values, declared where they are computed and carried by their names from there to
// metrics.jsonl, the report, TensorBoard and Megatron-LM's log line.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/autograd/tape.h"

namespace witan {

// Declares a statistic. Its value covers all tokens of a micro-batch: if tensor- or context-parallel ranks each hold
// some of them, the module that computes it has combined the ranks' values, and all ranks have the same.
struct RouterStatistic {
  enum class Shape : uint8_t { layer, expert };  // a value of each MoE layer, or one of each of its experts
  enum class Reduce : uint8_t { mean, sum, max };
  // Computed on the host from another statistic of the same layer, its source, in each micro-batch or from a step's.
  struct Derived {
    std::string source;
    enum class From : uint8_t { micro_batch, step } from;
    std::function<double(std::span<const double> source)> compute;
  };

  std::string name;  // key in metrics.jsonl
  Shape shape = Shape::layer;
  Reduce over_micro_batches = Reduce::mean;
  std::optional<Reduce> over_layers = Reduce::mean;  // none: there is no value for the whole model
  bool whole_numbers = false;
  std::string tag = {};                         // in TensorBoard and Megatron-LM's log; empty: the name
  std::optional<double> loss_coefficient = {};  // of a loss: its weight in the step's loss
  std::optional<Derived> derived = {};

  const std::string& display_tag() const { return tag.empty() ? name : tag; }
};

// A router's values for a micro-batch: losses, which have gradients, and other statistics.
struct RouterRecord {
  struct Loss {
    std::string name;
    Var value;  // [1]
  };
  struct Other {
    std::string name;
    Tensor value;  // [1] or [E], of any dtype; whole numbers are exact to 2^53
  };
  std::vector<Loss> losses;
  std::vector<Other> others;

  bool empty() const { return losses.empty() && others.empty(); }
  const Var& loss(std::string_view name) const;  // throws ShapeError if there is none, as value() does
  Tensor value(std::string_view name) const;     // of a loss or another statistic

  // For full recomputation, which passes lists of values: a record of the declared names without values; this record's
  // values in the order of those names; those names with such values.
  static RouterRecord named(const std::vector<RouterStatistic>& declared);
  std::vector<Var> values(Tape& tape, const RouterRecord& names) const;
  RouterRecord with(std::span<const Var> values) const;
};

// Packs the values of a layer and a micro-batch that are not derived, in the order of declaration.
class StatisticsLayout {
 public:
  StatisticsLayout(std::vector<RouterStatistic> declared, int64_t experts);

  const std::vector<RouterStatistic>& declared() const { return declared_; }
  int64_t experts() const { return experts_; }
  int64_t values() const { return values_; }
  // Throws ShapeError if the record lacks a declared statistic, or has an undeclared one or one of another size.
  std::vector<Tensor> pack(const RouterRecord& record) const;
  // The packed values of a declared statistic that is not derived.
  std::span<const double> find(std::string_view name, std::span<const double> packed) const;

 private:
  int64_t size_of(const RouterStatistic& statistic) const;

  std::vector<RouterStatistic> declared_;
  int64_t experts_, values_ = 0;
};

// A step's statistics.
class StepStatistics {
 public:
  struct Value {
    RouterStatistic declared;
    std::vector<std::vector<double>> layers;  // [MoE layers][1 or E]
    std::optional<double> model;
  };

  StepStatistics() = default;
  explicit StepStatistics(std::vector<Value> values) : values_(std::move(values)) {}
  // Combines packed values [micro-batches][MoE layers] in this order, so that every layout gets the same bits.
  StepStatistics(const StatisticsLayout& layout, const std::vector<std::vector<std::vector<double>>>& packed);

  const std::vector<Value>& values() const { return values_; }
  bool empty() const { return values_.empty(); }
  const Value* find(std::string_view name) const;                         // null if there is none
  std::optional<double> model(std::string_view name) const;               // nothing if there is none
  std::vector<std::vector<int64_t>> counts(std::string_view name) const;  // [layers][E]; empty if there is none

 private:
  std::vector<Value> values_;
};

}  // namespace witan

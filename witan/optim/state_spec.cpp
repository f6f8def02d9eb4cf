#include "witan/optim/state_spec.h"

namespace witan {
namespace {

// Converts a region of whole rows from elements to rows.
Region rows_of_region(const Region& region, int64_t columns) {
  return {region.first() / columns, region.length() / columns, region.runs(), region.distance() / columns};
}

}  // namespace

MatrixSize matrix_size(const ParameterSpec& parameter) {
  const int64_t columns = parameter.shape.last();
  return {parameter.shape.elements() / (parameter.expert ? parameter.shape[0] : 1) / columns, columns};
}

ShardMatrices matrices_of(const Parameter& parameter, int64_t first, int64_t elements) {
  const ParameterSpec& spec = parameter.spec();
  const int64_t held = spec.expert ? parameter.shape()[0] : 1, each = parameter.elements() / held;
  require<ShapeError>(first % each == 0 && elements % each == 0, "optimizer: elements [", first, ", ", first + elements,
                      ") of ", parameter.name(), " cut a matrix of ", each, " elements, which is updated as a whole");
  const int64_t columns = parameter.shape().last();
  return {parameter.region().first() / matrix_size(spec).elements() + first / each,
          elements / each,
          {each / columns, columns}};
}

int64_t ShardState::elements() const {
  int64_t sum = 0;
  for (const Region& region : regions) sum += region.elements();
  return sum;
}

ShardState state_of(const OptimizerStateSpec& state, const OptimizerSettings& settings, const Parameter& parameter,
                    int64_t first, int64_t elements) {
  ShardState found{parameter.spec(), parameter.region().slice(first, first + elements)};
  if (state.shape == OptimizerStateSpec::Shape::elements) return found;
  const ShardMatrices matrices = matrices_of(parameter, first, elements);
  const MatrixSize whole = matrix_size(parameter.spec());
  const bool by_rows = state.shape == OptimizerStateSpec::Shape::rows;
  const int64_t each = by_rows ? whole.rows : state.elements_of(settings, whole.rows, whole.columns);
  const TensorSplit& split = parameter.spec().tensor_split;
  found.global.shape = parameter.spec().expert ? Shape{parameter.spec().shape[0], each} : Shape{each};
  if (by_rows && split.any() && split.dim + 1 < parameter.spec().shape.dims()) {
    for (Region& region : found.regions) region = rows_of_region(region, whole.columns);
    found.global.tensor_split.dim = parameter.spec().expert ? 1 : 0;
    return found;
  }
  found.global.tensor_split = {};
  found.regions.clear();
  if (matrices.count * each > 0) found.regions.emplace_back(matrices.first * each, matrices.count * each);
  return found;
}

}  // namespace witan

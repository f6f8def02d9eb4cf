// Describes the state that an optimizer keeps for each parameter before it is made: shape and dtype of every tensor,
// and a rank's part of the global tensor that checkpoints hold.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/config.h"

namespace witan {

struct OptimizerStateSpec {
  enum class Shape : uint8_t {
    elements,  // the parameter's: one number for each element, divided like the elements
    rows,      // one number for each row of each matrix, divided like the rows: [R], or [E, R] for a stack
    matrices,  // `elements_of` numbers for each matrix: [n], or [E, n] for a stack. Tensor-parallel ranks that divide
               // the matrix hold all n each.
  };
  std::string prefix;  // "adam.m": the tensor of a parameter is "adam.m/NAME"
  Shape shape = Shape::elements;
  std::optional<DType> dtype = {};  // none: the accumulator dtype of the value's
  // For Shape::matrices: the numbers for a whole matrix of these rows and columns; 0: there is no tensor. A vector is a
  // matrix of one row.
  int64_t (*elements_of)(const OptimizerSettings& settings, int64_t rows, int64_t columns) = nullptr;

  DType dtype_of(const ParameterSpec& parameter) const { return dtype ? *dtype : accumulator(parameter.dtype); }
};

// Rows and columns of a parameter's whole matrices: of each expert's in a stack. All dims but the last are rows; a
// vector has one row.
struct MatrixSize {
  int64_t rows, columns;
  int64_t elements() const { return rows * columns; }
};
MatrixSize matrix_size(const ParameterSpec& parameter);

// The matrices of a shard (elements [first, first + elements) of the flat local part), or the pieces of matrices that a
// tensor-parallel rank holds.
struct ShardMatrices {
  int64_t first, count;  // among the matrices of the global stack
  MatrixSize piece;      // this rank's part of each
};
// Throws ShapeError if the shard cuts a matrix.
ShardMatrices matrices_of(const Parameter& parameter, int64_t first, int64_t elements);

// A tensor of state for a shard.
struct ShardState {
  // Describes the global tensor and how ranks hold it, like a parameter's: of the state's shape, and not divided if
  // tensor-parallel ranks hold the same.
  ParameterSpec global;
  std::vector<Region> regions;  // the shard's parts of it, in order

  int64_t elements() const;
};
// Throws ShapeError if the shard cuts a matrix, unless the state is of Shape::elements.
ShardState state_of(const OptimizerStateSpec& state, const OptimizerSettings& settings, const Parameter& parameter,
                    int64_t first, int64_t elements);

}  // namespace witan

// What an optimizer keeps of each parameter, described before there is one: shape and dtype of every tensor, and where
// a rank's part of it stands in the global tensor that checkpoints hold.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/config.h"

namespace witan {

struct OptimizerStateSpec {
  enum class Shape : uint8_t {
    elements,  // the parameter's: one number for each element, divided as they are
    rows,      // one number for each row of each matrix, divided as the rows are: [R] of a matrix, [E, R] of a stack
    matrices,  // `elements_of` numbers for each matrix: [n], or [E, n] of a stack. Where tensor-parallel ranks divide
               // the matrix, each of them holds all n.
  };
  std::string prefix;  // "adam.m": the tensor of a parameter is "adam.m/NAME"
  Shape shape = Shape::elements;
  std::optional<DType> dtype = {};  // none: the accumulator of the value's
  // Of Shape::matrices, for a whole matrix of this many rows and columns; with 0 elements there is no tensor. A vector
  // is a matrix of one row.
  int64_t (*elements_of)(const OptimizerSettings& settings, int64_t rows, int64_t columns) = nullptr;

  DType dtype_of(const ParameterSpec& parameter) const { return dtype ? *dtype : accumulator(parameter.dtype); }
};

// Rows and columns of a parameter's matrices, whole: of each expert's in a stack, where all dims but the last are rows;
// of a vector one row.
struct MatrixSize {
  int64_t rows, columns;
  int64_t elements() const { return rows * columns; }
};
MatrixSize matrix_size(const ParameterSpec& parameter);

// Of a shard (elements [first, first + elements) of the flat local part) that consists of whole matrices, or of the
// whole pieces of them that a tensor-parallel rank has.
struct ShardMatrices {
  int64_t first, count;  // among the matrices of the global stack
  MatrixSize piece;      // of each: what this rank holds of it
};
// Throws ShapeError where a matrix would be cut.
ShardMatrices matrices_of(const Parameter& parameter, int64_t first, int64_t elements);

// A tensor of state for a shard.
struct ShardState {
  // What the global tensor is and how ranks hold it, as if it were a parameter: of the state's shape, and not divided
  // where tensor-parallel ranks hold the same.
  ParameterSpec global;
  std::vector<Region> regions;  // of it, that the shard's numbers are, one after the other

  int64_t elements() const;
};
// Throws ShapeError where state that is not of Shape::elements would cut a matrix.
ShardState state_of(const OptimizerStateSpec& state, const OptimizerSettings& settings, const Parameter& parameter,
                    int64_t first, int64_t elements);

}  // namespace witan

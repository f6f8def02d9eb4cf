// Adapters of low rank beside frozen matrices (Hu et al., "LoRA", 2021, arXiv:2106.09685): y = W x + (alpha / r) B A x.
//
// With magnitudes (Liu et al., "DoRA", 2024, arXiv:2402.09353) the rows of the sum are rescaled:
//   y[n] = m[n] (W + (alpha / r) B A)[n] x / |(W + (alpha / r) B A)[n]|,  m[n] = |W[n]| + change[n]
// in which the change is trained, so that the magnitude's first value follows from W wherever W comes from.
//
// A is initialized with random numbers, B and changes with zeros, so that an adapted model begins as the original.
// Tensor-parallel ranks that divide a matrix divide its adapter too, as in Megatron-LM and PEFT: B if the matrix is
// divided by outputs, A if it is divided by inputs. The other factor is whole on every rank, whose gradient of it is a
// summand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/nn/layers.h"
#include "witan/nn/linear.h"
#include "witan/nn/module.h"
#include "witan/ops/linear/linear.h"

namespace witan {

struct LoraConfig {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;                // of A's input
  std::vector<std::string> targets;  // names of matrices: "q_proj", "gate_proj"
  bool rank_stabilized = false;      // rsLoRA (Kalajdzievski, 2023, arXiv:2312.03732)
  bool magnitudes = false;           // DoRA

  double scale() const;
  bool adapts(std::string_view name) const;
  // The parameters of a matrix's adapter.
  int64_t parameters(int64_t in, int64_t out) const { return rank * (in + out) + (magnitudes ? out : 0); }
};
// All names that may be targets, in token mixers of every kind, MLPs, experts and embeddings for each layer.
const std::vector<std::string>& lora_target_names();

// The last names of an adapter's parameters, and whether a parameter's name ends with one.
inline constexpr const char* kLoraA = "lora_A";
inline constexpr const char* kLoraB = "lora_B";
inline constexpr const char* kLoraMagnitude = "lora_magnitude";  // the change of magnitudes
bool is_adapter(std::string_view parameter);

// PEFT's initialization of A: the standard deviation of PyTorch's default for a matrix with `in` inputs.
Initialization lora_init(int64_t in);

class Adapter : public Module {
 public:
  // lora_A [r, in], lora_B [out, r] and, with magnitudes, lora_magnitude [out] of a matrix [out, in] that is `divided`.
  // `first`: the column of y at which this rank's share of the outputs begins.
  Adapter(const Builder& builder, int64_t in, int64_t out, const Divided& divided, int64_t first);

  // y [.., N] += scale B A x in the columns of this rank's outputs, in place; x [.., in], or the rank's share of it.
  // Nothing is added while ModelServices::adapters_off says so.
  Var add_to(Tape& tape, Var y, const Var& x, const Randomness& randomness);
  // Whether outputs are rescaled, and to what, after all adapters of `weight` [N, in], which this rank's rows of the
  // matrix are from row `first` on. If ranks divide the inputs, they add up squares.
  bool rescales() const { return change_ != nullptr && !is_off(); }
  ops::Magnitude magnitude(Tape& tape, const Var& weight);
  void attach(const ModelServices& services) override;

 private:
  bool is_off() const { return off_ != nullptr && *off_; }

  const bool* off_ = nullptr;
  double scale_;
  int64_t first_;
  Dropout dropout_;
  Parameter &a_, &b_;
  Parameter* change_ = nullptr;    // of magnitudes; null: rows keep theirs
  Group* sums_squares_ = nullptr;  // ranks that divide the inputs; null: none do
};

}  // namespace witan

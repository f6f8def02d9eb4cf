// y = x wᵀ + b, whole or divided among the ranks of the tensor axis, with optional adapters (nn/lora.h).
#pragma once

#include <memory>
#include <vector>

#include "witan/nn/layers.h"
#include "witan/nn/module.h"

namespace witan {

enum class Bias : uint8_t { none, zeros };  // zeros: initially, unless PyTorch's defaults are used

// The features of a linear layer that the ranks of the tensor axis divide.
struct Divided {
  enum class By : uint8_t { none, out, in };
  By by = By::none;
  int64_t blocks = 1;   // blocks of out, each of which is divided by itself
  bool uneven = false;  // whether ranks may have different numbers of outputs
  int64_t padding = 0;  // padding features at the end, whose weights are and stay 0

  static constexpr Divided out(int64_t blocks = 1) { return {By::out, blocks}; }
  static constexpr Divided in() { return {By::in}; }
  // Divides a head's logits like an embedding's entries.
  static constexpr Divided vocabulary(int64_t padding) { return {By::out, 1, true, padding}; }
};

class Adapter;

class Linear : public Module {
 public:
  // weight [out, in], normal with the given standard deviation; bias [out], without weight decay; and an adapter if the
  // last name of the path is a target of builder.lora. The halves of a "gate_up_proj" have adapters of their own, if
  // "gate_proj" and "up_proj" are targets.
  Linear(const Builder& builder, int64_t in, int64_t out, double std, Bias bias = Bias::none, Divided divided = {});
  ~Linear() override;

  // x [.., in] -> [.., out]. Divided by out: x from to_sharded_layer() -> [.., out/n]. Divided by in: x [.., in/n] ->
  // the residual stream. `randomness`: for the dropout of adapters.
  Var forward(Tape& tape, const Var& x, const Randomness& randomness = {});
  // The two steps of a forward divided by in: x [.., in/n] -> this rank's summands [.., out], without a bias,
  Var summands(Tape& tape, const Var& x, const Randomness& randomness = {});
  // and -> their sum over the ranks, with the bias, in the residual stream; move y in.
  Var total(Tape& tape, Var y);

  // For callers that compute several layers at once.
  Parameter& weight() { return weight_; }
  bool multiplies_in_fp8() const { return fp8_ != nullptr; }
  bool has_bias() const { return bias_ != nullptr; }
  bool has_adapters() const { return !adapters_.empty(); }
  Parameter* bias() { return bias_; }  // null if there is none

 private:
  void add_adapters(const Builder& builder, int64_t in, int64_t out, const Divided& divided);

  Var product(Tape& tape, const Var& x, const Randomness& randomness);
  Var sum(Tape& tape, Var y);
  bool has_summands() const { return sums_over_ && sums_over_->group.size() > 1; }

  std::optional<TensorAxis> sums_over_;  // the axis whose ranks have summands of y
  Parameter& weight_;
  std::shared_ptr<const ops::Fp8Quantiser> fp8_;  // of 8-bit operands; null: operands keep their dtype
  Parameter* bias_ = nullptr;
  std::vector<std::unique_ptr<Adapter>> adapters_;
};

}  // namespace witan

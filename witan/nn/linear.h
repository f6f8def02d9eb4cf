// y = x wᵀ + b, whole or divided among the ranks of the tensor axis, with adapters where there are some (nn/lora.h).
#pragma once

#include <memory>
#include <vector>

#include "witan/nn/layers.h"
#include "witan/nn/module.h"

namespace witan {

enum class Bias : uint8_t { none, zeros };  // zeros: at first, unless PyTorch's defaults are asked for

// Which of its features each of the n ranks of the tensor axis has a share of.
struct Divided {
  enum class By : uint8_t { none, out, in };
  By by = By::none;
  int64_t blocks = 1;   // of out, each of which is divided by itself
  bool uneven = false;  // of out, not as many on each rank perhaps
  int64_t padding = 0;  // features at the end that stand for nothing: their weights begin, and stay, at 0

  static constexpr Divided out(int64_t blocks = 1) { return {By::out, blocks}; }
  static constexpr Divided in() { return {By::in}; }
  // A head's logits, as an embedding's entries are.
  static constexpr Divided vocabulary(int64_t padding) { return {By::out, 1, true, padding}; }
};

class Adapter;

class Linear : public Module {
 public:
  // weight [out, in], normal with the given standard deviation; bias [out], which does not decay
  // and, where the last name of its path is a target of builder.lora, an adapter; of a "gate_up_proj" one for each half
  // that is, by the names "gate_proj" and "up_proj".
  Linear(const Builder& builder, int64_t in, int64_t out, double std, Bias bias = Bias::none, Divided divided = {});
  ~Linear() override;

  // x [.., in] -> [.., out]. Divided by out: x as to_sharded_layer() gives it -> [.., out/n]. Divided by in: x
  // [.., in/n] -> the residual stream. `randomness`: of the dropout of adapters.
  Var forward(Tape& tape, const Var& x, const Randomness& randomness = {});
  // The halves of it where features are divided by in: x [.., in/n] -> this rank's summands [.., out], without a bias
  Var summands(Tape& tape, const Var& x, const Randomness& randomness = {});
  // -> their sum over the ranks, in the residual stream; move y in.
  Var total(Tape& tape, Var y);

  // For who computes several of them at once.
  Parameter& weight() { return weight_; }
  bool multiplies_in_fp8() const { return fp8_ != nullptr; }
  bool has_bias() const { return bias_ != nullptr; }
  bool has_adapters() const { return !adapters_.empty(); }
  Parameter* bias() { return bias_; }  // null: there is none

 private:
  void add_adapters(const Builder& builder, int64_t in, int64_t out, const Divided& divided);

  Var product(Tape& tape, const Var& x, const Randomness& randomness);
  Var sum(Tape& tape, Var y);
  bool has_summands() const { return sums_over_ && sums_over_->group.size() > 1; }

  std::optional<TensorAxis> sums_over_;  // where ranks have summands of y
  Parameter& weight_;
  std::shared_ptr<const ops::Fp8Quantiser> fp8_;  // of operands in 8 bits; null: they are not
  Parameter* bias_ = nullptr;
  std::vector<std::unique_ptr<Adapter>> adapters_;
};

}  // namespace witan

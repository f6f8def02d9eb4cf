// The initial weights of an MoE model from a trained dense one ("upcycling": Komatsuzaki et al., arXiv:2212.05055). The
// experts of a layer are made from the dense layer's MLP, routers are drawn at random, and all other tensors are
// copied.
//
// - copied: each expert is a copy. If the router's weights sum to 1, the model computes the dense model's function.
// - granular: with F / f = G, expert e is slice e % G of the hidden units, and the router's rows of the G slices of a
// copy
//   are equal, so that a token that selects one selects all of them (virtual groups: He et al., arXiv:2410.07524, and
//   Megatron-LM's moe_upcycling_granularity). The function is kept as with copies.
// - drop: copies in which a share of the hidden units, different ones in each expert, are drawn anew from a normal
//   distribution with the mean and standard deviation of the replaced values (Drop-Upcycling: Nakamura et al.,
//   arXiv:2502.19261).
//
// Down projections are scaled by G / s, where s is the sum of a token's weights. It is exact if they are normalised
// over the selected experts; otherwise it is that of a uniform router, which keeps the function only in expectation.
//
// Each element depends only on the dense model, the seed and its place in the global tensor, and so not on the layout.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/checkpoint/store.h"
#include "witan/model/transformer.h"
#include "witan/train/config/config.h"

namespace witan {

// The checkpoint that train.upcycle names (find_named()). Adds a sentence to `warnings` for every damaged checkpoint of
// the run that is skipped. Throws CheckpointError if there is none.
Checkpoint open_dense_model(const TrainConfig& train, std::vector<std::string>& warnings);

// Opens it and throws ConfigError if it is not a dense model for this run. Before there is a tokenizer, the size of the
// vocabulary is not compared.
Checkpoint check_dense_model(const RunConfig& config, std::vector<std::string>& warnings);

class Upcycling {
 public:
  // Opens the dense model. Throws CheckpointError if there is none, or a tensor of either model has no counterpart;
  // ConfigError if the models differ in more than their MLPs.
  explicit Upcycling(const RunConfig& config);
  ~Upcycling();
  Upcycling(const Upcycling&) = delete;
  Upcycling& operator=(const Upcycling&) = delete;

  // Fills the values and masters among a rank's tensors; others stay. Needs sole use of the stream's device.
  void fill(Stream& stream, const std::vector<StateTensor>& state);

  const Checkpoint& dense() const { return dense_; }
  // How many values of each of the dense model's tensors that fill() has read are NaN or infinite.
  const std::map<std::string, int64_t>& non_finite() const { return non_finite_; }
  // About damaged checkpoints of its run that were skipped.
  const std::vector<std::string>& warnings() const { return warnings_; }
  double scale() const { return scale_; }  // of the down projections

 private:
  enum class Part : uint8_t {
    whole,   // copied
    first,   // [E, blocks f, D] of [blocks F, D]: gate and up, or up alone
    second,  // [E, D, f] of [D, F]
    router,  // drawn, with equal rows for the slices of a copy
  };
  struct Target {
    Part part = Part::whole;
    std::string source;  // empty for the router
    int64_t layer = 0;
    ParameterSpec spec;
  };
  struct Making;

  void map_tensors();
  void map_expert(Target& target, const std::string& block, const std::string& projection);
  std::vector<double> read(const std::string& name);
  template <class Value>
  void write(Stream& stream, const StateTensor& to, const Value& value) const;
  void make_expert(Stream& stream, const StateTensor& to, const Target& target);

  const RunConfig& config_;
  std::vector<std::string> warnings_;
  Checkpoint dense_;
  std::map<std::string, Target> targets_;  // by name of the MoE model's parameter
  int64_t slices_ = 1;                     // G
  double scale_ = 1;
  std::string read_;            // the tensor that was read last, which may be the source of several
  std::vector<double> values_;  // its values
  std::map<std::string, int64_t> non_finite_;
};

}  // namespace witan

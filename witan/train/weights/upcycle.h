// The initial weights of an MoE model from a trained dense one ("upcycling": Komatsuzaki et al., arXiv:2212.05055). Of
// each MoE layer the experts are made of the dense layer's MLP, the router is drawn, and all other tensors are copied.
//
// - copied: each expert is a copy. With weights that sum to 1 the model computes what the dense one did.
// - granular: with F / f = G, expert e is slice e % G of the hidden units, and the G slices of a copy have routers of
//   equal rows, so that a token which chooses one chooses all of them (virtual groups: He et al., arXiv:2410.07524, and
//   Megatron-LM's moe_upcycling_granularity). The function is kept as by copies.
// - drop: copies, a share of whose hidden units, other ones in each expert, are drawn anew: normal, with mean and
//   standard deviation of the values that they replace (Drop-Upcycling: Nakamura et al., arXiv:2502.19261).
//
// Down projections are scaled by G / s, where s is what the weights of a token sum to: exactly where they are
// normalised (over the chosen), or what they do at an even router, which keeps the function in expectation alone.
//
// What each element becomes depends on the dense model, the seed and its place in the global tensor: no layout changes
// it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/checkpoint/store.h"
#include "witan/model/transformer.h"
#include "witan/train/config/config.h"

namespace witan {

// The checkpoint that train.upcycle names: its folder, that of a run, the name of a run in runs_folder, or of one of
// its checkpoints (RUN@best, RUN@STEP). Adds a sentence to `warnings` for every damaged checkpoint of the run that is
// skipped. Throws CheckpointError where there is none.
Checkpoint open_dense_model(const TrainConfig& train, std::vector<std::string>& warnings);

// The same. Throws, too, where it is no model to start from, but for the size of its vocabulary: before there is a
// tokenizer.
Checkpoint check_dense_model(const RunConfig& config, std::vector<std::string>& warnings);

class Upcycling {
 public:
  // Opens the dense model. Throws CheckpointError where there is none, or a tensor of either model has no counterpart;
  // ConfigError where the models differ in more than their MLPs.
  explicit Upcycling(const RunConfig& config);
  ~Upcycling();
  Upcycling(const Upcycling&) = delete;
  Upcycling& operator=(const Upcycling&) = delete;

  // Fills the values and masters among a rank's tensors; others stay. On the stream's device, which nobody else uses.
  void fill(Stream& stream, const std::vector<StateTensor>& state);

  const Checkpoint& dense() const { return dense_; }
  // Of the dense model's tensors that fill() has read, each as a whole: how many values are NaN or infinite.
  const std::map<std::string, int64_t>& non_finite() const { return non_finite_; }
  // Damaged checkpoints of its run that were passed over.
  const std::vector<std::string>& warnings() const { return warnings_; }
  double scale() const { return scale_; }  // of down projections

 private:
  enum class Part : uint8_t {
    whole,   // copied as it is
    first,   // [E, blocks f, D] of [blocks F, D]: gate and up, or up alone
    second,  // [E, D, f] of [D, F]
    router,  // drawn: rows of a copy's slices are equal
  };
  struct Target {
    Part part = Part::whole;
    std::string source;  // of router: none
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
  std::map<std::string, Target> targets_;  // by the names of the MoE model's parameters
  int64_t slices_ = 1;                     // G
  double scale_ = 1;
  std::string read_;  // the tensor last read, which several of a rank's tensors may come from
  std::vector<double> values_;
  std::map<std::string, int64_t> non_finite_;
};

}  // namespace witan

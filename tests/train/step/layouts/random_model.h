// Random configurations of small models with their optimizer and batches, drawn key by key from a seed.
#pragma once

#include <initializer_list>
#include <string>

#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/base/numbers/rng.h"

namespace witan::testing {

class RandomModel {
 public:
  explicit RandomModel(uint64_t seed);

  const RunConfig& config() const { return config_; }
  const std::string& keys() const { return keys_; }  // "key=value key=value", in the order in which they were drawn
  // Roots and eigenvectors of nearly singular factors amplify rounding.
  bool preconditions() const {
    return config_.optimizer.optimizer == "shampoo" || config_.optimizer.optimizer == "soap";
  }
  // Draws a layout; each call another one.
  LaidOut layout();
  // The model in a layout, with keys of it that a LaidOut does not have.
  RunConfig in(const LaidOut& layout);
  // Micro-batches whose documents, if they are separated, have drawn lengths.
  MakeBatches batches() const;

 private:
  // How rows are divided into documents.
  enum class Documents { of_five_tokens, short_ones, of_any_length, padded };

  bool chance(double share) { return rng_.uniform(index_++) < share; }
  std::string pick(std::initializer_list<const char*> values) {
    return values.begin()[rng_.below(values.size(), index_++)];
  }
  void set(const std::string& key, const std::string& value);
  // Sets the key to one of the values in this share of all models.
  void maybe(double share, const char* key, std::initializer_list<const char*> values);
  std::string some_layers();
  std::string numbers_of_layers(std::initializer_list<const char*> values);

  void draw_sizes();
  void draw_mixer();
  void draw_latent_attention();
  void draw_heads();
  void draw_windows();
  void draw_rotation();
  void draw_other_mixers();
  void draw_delta_sizes();
  void draw_compressed_attention();
  void draw_sparse_attention();
  void draw_single_parts();
  void draw_mamba_sizes();
  void draw_blocks();
  void draw_activation();
  void draw_joined_layers();
  void draw_frozen();
  void draw_experts();
  void draw_router();
  void draw_balance();
  void draw_dense();
  void draw_training();

  RunConfig config_ = divisible_config();
  uint64_t seed_;
  Philox rng_;
  uint64_t index_ = 0;
  Documents documents_ = Documents::of_five_tokens;
  std::string keys_;
};

}  // namespace witan::testing

// modded-nanogpt (Jordan et al., 2024) with experts, written from its formulas as plain loops over one sequence: the
// reference for nanogpt_config() of model_support.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/config/layer_pattern.h"
#include "witan/model/config.h"

namespace witan::testing {

class NanogptReference {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  explicit NanogptReference(const ModelConfig& config) : config_(config) {}
  void give(const std::string& name, Row values) { weights_[name] = std::move(values); }

  // [tokens, V], concatenated
  Row logits(std::span<const int32_t> tokens) const {
    const auto layers = static_cast<size_t>(config_.num_layers);
    const auto tables = config_.value_embeddings();
    Rows x;
    for (const int32_t token : tokens) x.push_back(normed(row_of("embedding.weight", token)));
    const Rows embedding = x;
    std::vector<Rows> outputs;
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer) + ".";
      if (layer >= layers / 2) add(x, outputs[layers - 1 - layer], factor(name + "skip_scale"));
      for (size_t t = 0; t < x.size(); ++t)
        for (size_t d = 0; d < x[t].size(); ++d)
          x[t][d] = factor(name + "residual_scale") * x[t][d] + factor(name + "embedding_scale") * embedding[t][d];
      if (layer != 2) {
        Rows values;
        for (const int32_t token : tokens)
          values.push_back(row_of("value_embedding_" + std::to_string(tables[layer]) + ".weight", token));
        add(x, attention(name + "attention.", x, values), 1);
      }
      Rows fed;
      for (const Row& row : x) fed.push_back(feed_forward(name, normed(row)));
      add(x, fed, 1);
      outputs.push_back(x);
    }
    Row all;
    for (const Row& row : x)
      for (const double logit : product("head.weight", normed(row)))
        all.push_back(config_.logit_soft_cap * std::tanh(config_.logit_scale * logit / config_.logit_soft_cap));
    return all;
  }

 private:
  double factor(const std::string& name) const { return weights_.at(name).front(); }

  Row row_of(const std::string& table, int32_t token) const {
    const Row& w = weights_.at(table);
    const auto width = static_cast<int64_t>(w.size()) / config_.vocab_size;
    return {w.begin() + token * width, w.begin() + (token + 1) * width};
  }

  // w [.., in] x, for the rows of w from `first` on
  static Row product(std::span<const double> w, const Row& x) {
    Row y(w.size() / x.size());
    for (size_t i = 0; i < y.size(); ++i)
      y[i] = std::inner_product(x.begin(), x.end(), w.begin() + static_cast<int64_t>(i * x.size()), 0.0);
    return y;
  }
  Row product(const std::string& name, const Row& x) const { return product(std::span(weights_.at(name)), x); }

  static void add(Rows& to, const Rows& more, double factor) {
    for (size_t t = 0; t < to.size(); ++t)
      for (size_t d = 0; d < to[t].size(); ++d) to[t][d] += factor * more[t][d];
  }

  Row normed(Row x) const {
    const double square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
    for (double& value : x) value /= std::sqrt(square + config_.norm.norm_epsilon);
    return x;
  }

  // Rotates one head: the first two of 4 pairs (i, i + 4), by 1 and by 1 / base.
  Row turned(Row head, size_t position) const {
    for (size_t pair = 0; pair < 2; ++pair) {
      const double angle = static_cast<double>(position) * std::pow(config_.attention.rotary_base, -double(pair));
      const double a = head[pair], b = head[pair + 4];
      head[pair] = a * std::cos(angle) - b * std::sin(angle);
      head[pair + 4] = a * std::sin(angle) + b * std::cos(angle);
    }
    return head;
  }

  Rows attention(const std::string& name, const Rows& x, const Rows& embedded) const {
    const auto heads = static_cast<size_t>(config_.attention.num_attention_heads), S = x.size();
    const auto hd = static_cast<size_t>(config_.attention.kv_channels);
    Rows q, k, v;
    for (size_t t = 0; t < S; ++t) {
      const Row in = normed(x[t]);
      q.push_back(product(name + "q_proj.weight", in));
      k.push_back(product(name + "k_proj.weight", in));
      v.push_back(product(name + "v_proj.weight", in));
      for (size_t c = 0; c < v[t].size(); ++c)
        v[t][c] = factor(name + "value_scale") * v[t][c] + factor(name + "embedded_scale") * embedded[t][c];
    }
    Rows y(S, Row(heads * hd));
    for (size_t h = 0; h < heads; ++h) {
      const auto head_of = [&](const Rows& all, size_t t) {
        const auto begin = all[t].begin() + static_cast<int64_t>(h * hd);
        return turned(normed({begin, begin + static_cast<int64_t>(hd)}), t);
      };
      for (size_t t = 0; t < S; ++t) {
        const Row query = head_of(q, t);
        Row p;
        for (size_t s = 0; s <= t; ++s) {
          const Row key = head_of(k, s);
          p.push_back(std::exp(config_.attention.softmax_scale *
                               std::inner_product(query.begin(), query.end(), key.begin(), 0.0)));
        }
        const double sum = std::accumulate(p.begin(), p.end(), 0.0);
        for (size_t s = 0; s <= t; ++s)
          for (size_t c = 0; c < hd; ++c) y[t][h * hd + c] += p[s] / sum * v[s][h * hd + c];
      }
    }
    for (Row& row : y) row = product(name + "o_proj.weight", row);
    return y;
  }

  static Row silu(Row h) {
    for (double& value : h) value /= 1 + std::exp(-value);
    return h;
  }

  Row feed_forward(const std::string& name, const Row& x) const {
    if (config_.moe.num_experts == 0)
      return product(name + "mlp.down_proj.weight", silu(product(name + "mlp.up_proj.weight", x)));
    const Row scores = product(name + "moe.router.weight", x);
    const auto best = std::ranges::max_element(scores) - scores.begin();
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - scores[static_cast<size_t>(best)]);
    const auto of_expert = [&](const std::string& matrix) {
      const Row& all = weights_.at(name + "moe.experts." + matrix);
      const size_t size = all.size() / scores.size();
      return std::span(all).subspan(static_cast<size_t>(best) * size, size);
    };
    Row y = product(of_expert("down_proj"), silu(product(of_expert("up_proj"), x)));
    for (double& value : y) value /= sum;  // times the best expert's share
    return y;
  }

  ModelConfig config_;
  std::map<std::string, Row> weights_;
};

}  // namespace witan::testing

#include "witan/model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "witan/base/config/layer_pattern.h"
#include "witan/base/error.h"
#include "witan/base/numbers/torch_random.h"
#include "witan/base/text.h"
#include "witan/model/frozen.h"
#include "witan/moe/layer/experts.h"
#include "witan/nn/lora.h"

namespace witan {

namespace {

constexpr const char* kNoTables = "none";

// Lets the last layers attend to keys and values of the last layer before them that has the same window and rotation.
void share_keys_and_values(std::vector<MixerSpec>& mixers, int64_t last) {
  const auto begin = mixers.end() - std::min(last, std::ssize(mixers));
  for (auto mixer = begin; mixer != mixers.end(); ++mixer) {
    auto* const borrower = std::get_if<MultiHeadSpec>(&*mixer);
    if (borrower == nullptr) continue;
    const auto is_like = [&](const MixerSpec& other) {
      const auto* const spec = std::get_if<MultiHeadSpec>(&other);
      return spec != nullptr && spec->window == borrower->window && spec->rope == borrower->rope;
    };
    const auto found = std::find_if(std::make_reverse_iterator(begin), mixers.rend(), is_like);
    require<ConfigError>(found != mixers.rend(), "num_kv_shared_layers = ", last, ": layer ", mixer - mixers.begin(),
                         ", with ", mixer_kind(*mixer).describe(), ", has none like it among the first ",
                         begin - mixers.begin(),
                         " layers, to whose keys and values it could attend; set num_kv_shared_layers lower");
    const int64_t lender = mixers.rend() - found - 1;
    std::get<MultiHeadSpec>(*found).sharing = KeySharing{.of = lender};
    borrower->sharing = KeySharing{.of = lender, .borrows = true};
  }
}

std::vector<MixerSpec> mixers_of_layers(const ModelConfig& model) {
  std::vector<MixerSpec> all = model.attention.layers(model.hidden_size, model.num_layers);
  const std::vector<bool> linear = model.linear_attention.layers(model.num_layers);
  for (size_t layer = 0; layer < linear.size(); ++layer)
    if (linear[layer])
      all[layer] = model.linear_attention.mamba2() ? MixerSpec(model.mamba.spec(model.hidden_size))
                                                   : model.linear_attention.spec(model.hidden_size);
  if (model.has_sparse_attention()) model.sparse_attention.apply(all);
  if (model.has_compressed_attention()) {
    std::vector<CompressedSpec> compressed =
        model.compressed_attention.layers(model.attention, model.sparse_attention, model.hidden_size, model.num_layers);
    for (size_t layer = 0; layer < all.size(); ++layer) all[layer] = std::move(compressed[layer]);
  }
  const std::vector<HybridLayer> hybrid = model.mamba.layers(model.num_layers);
  for (size_t layer = 0; layer < hybrid.size(); ++layer) {
    if (hybrid[layer] == HybridLayer::mamba)
      all[layer] = model.mamba.spec(model.hidden_size);
    else if (hybrid[layer] != HybridLayer::attention)
      all[layer] = NoMixer();
  }
  for (const auto& [layer, mixer] : model.mixers) {
    require<ConfigError>(layer >= 0 && layer < model.num_layers, "mixers: layer ", layer,
                         " is not one of num_layers = ", model.num_layers, ", which are numbered from 0 on");
    all[static_cast<size_t>(layer)] = mixer;
  }
  share_keys_and_values(all, model.num_kv_shared_layers);
  return all;
}

// Checks the keys that let layers read more than the residual stream.
void validate_joins(const ModelConfig& model) {
  const std::vector<MixerSpec> mixers = mixers_of_layers(model);
  const std::vector<int64_t> tables = model.value_embeddings();
  for (size_t layer = 0; layer < tables.size(); ++layer)
    require<ConfigError>(tables[layer] == 0 || !std::holds_alternative<NoMixer>(mixers[layer]),
                         "value_embedding_freq = ", model.value_embedding_freq, " gives layer ", layer,
                         " a value embedding, and no_attention_freq takes its attention; put a 0 there");
  for (int64_t table = 1; table <= model.value_embedding_tables(); ++table)
    require<ConfigError>(std::ranges::find(tables, table) != tables.end(),
                         "value_embedding_freq = ", model.value_embedding_freq, ": no layer reads table ", table,
                         "; number tables from 1 on without a gap");
  require<ConfigError>(model.value_embedding_freq == kNoTables || !model.attention.multi_latent_attention,
                       "value_embedding_freq = ", model.value_embedding_freq,
                       " needs a projection of values, which multi_latent_attention = true does not have; set only one "
                       "of them");
  require<ConfigError>(model.value_embedding_freq == kNoTables || !model.linear_attention.any(),
                       "value_embedding_freq = ", model.value_embedding_freq,
                       " gives layers value embeddings, which those with experimental_attention_variant = ",
                       model.linear_attention.experimental_attention_variant, " do not read; set only one of them");
  require<ConfigError>(model.value_embedding_freq == kNoTables || model.mixers.empty(),
                       "value_embedding_freq = ", model.value_embedding_freq,
                       " gives layers value embeddings, and `mixers` replaces these layers' attention; set only one of "
                       "them");
  const AttentionConfig windowed = model.attention.of_windowed_layers();
  require<ConfigError>(
      model.value_embedding_freq == kNoTables || model.attention.window_size == "none" ||
          windowed.num_query_groups * windowed.value_head_dim(model.hidden_size) ==
              model.attention.num_query_groups * model.attention.value_head_dim(model.hidden_size),
      "value_embedding_freq = ", model.value_embedding_freq,
      " gives layers rows of one size, and window_kv_channels or window_num_query_groups make values of layers with a "
      "window another; leave one of these keys out");
  require<ConfigError>(model.value_embedding_freq == kNoTables || !model.attention.attention_k_eq_v,
                       "value_embedding_freq = ", model.value_embedding_freq,
                       " needs a projection of values, which attention_k_eq_v = true does not have; set only one of "
                       "them");
  require<ConfigError>(!model.skip_connections || model.num_layers > 1,
                       "skip_connections = true joins two halves of a model; num_layers = 1 has none");
  require<ConfigError>(
      model.init_method != "fan_in" || model.untie_embeddings_and_output_weights,
      "init_method = fan_in draws embeddings with a standard deviation of 1, too large for an output layer: "
      "set untie_embeddings_and_output_weights = true, or init_method = normal");
}

// Checks keys and values that layers share, and embeddings for each layer.
void validate_gemma_layers(const ModelConfig& model) {
  const auto refuse = [](const std::string& key, bool refused, const std::string& other, const char* why,
                         const char* fix) {
    require<ConfigError>(!refused, key, " with ", other, ": ", why, "; set ", fix);
  };
  if (const int64_t sharing = model.num_kv_shared_layers; sharing > 0) {
    const std::string key = cat("num_kv_shared_layers = ", sharing);
    refuse(key, model.attention.multi_latent_attention, "multi_latent_attention = true",
           "keys and values come from latents, which layers do not share", "one of them");
    refuse(key, model.has_compressed_attention(), "experimental_attention_variant = dsv4_hybrid",
           "layers attend to compressed keys, which they do not share", "one of them");
    refuse(key, model.value_embedding_freq != kNoTables, cat("value_embedding_freq = ", model.value_embedding_freq),
           "a layer without values of its own has none to which a value embedding could be added", "one of them");
    refuse(key, model.mtp_num_layers > 0, cat("mtp_num_layers = ", model.mtp_num_layers),
           "modules of multi-token prediction are like the last layer, which has no keys of its own",
           "mtp_num_layers = 0");
  }
  if (const int64_t channels = model.hidden_size_per_layer_input; channels > 0) {
    const std::string key = cat("hidden_size_per_layer_input = ", channels);
    refuse(key, !model.mlp.gated(), "an MLP without a gate",
           "a layer multiplies its embedding by a gate with the activation of MLPs", "swiglu, geglu or squared_reglu");
    refuse(key, model.streams.any(), cat("num_residual_streams = ", model.streams.num_residual_streams),
           "what is made of a layer's embedding is added to a single stream", "num_residual_streams = 1");
  }
}

// Checks a model whose layers are one part each.
void validate_hybrid(const ModelConfig& model) {
  if (!model.mamba.any()) return;
  const std::string& pattern = model.mamba.hybrid_override_pattern;
  const auto alone = [&](const char* key, const std::string& value, bool fine, const char* fix) {
    require<ConfigError>(fine, "hybrid_override_pattern = ", pattern, " makes each layer one part, and ", key, " = ",
                         value, " changes what it is; set ", key, " = ", fix);
  };
  alone("linear_attention_freq", model.linear_attention.linear_attention_freq, !model.linear_attention.any(), "none");
  alone("no_attention_freq", model.attention.no_attention_freq, model.attention.no_attention_freq == "none", "none");
  alone("moe_layer_freq", model.moe.moe_layer_freq, model.moe.moe_layer_freq == "1", "1");
  alone("value_embedding_freq", model.value_embedding_freq, model.value_embedding_freq == kNoTables, "none");
  alone("mtp_num_layers", cat(model.mtp_num_layers), model.mtp_num_layers == 0, "0");
  require<ConfigError>(pattern.find_first_of("M*") != std::string::npos, "hybrid_override_pattern = ", pattern,
                       " has no layer that reads other tokens than its own, so that the model could only learn which "
                       "token follows which; make at least one layer M (Mamba-2) or * (attention)");
  const bool experts = pattern.find('E') != std::string::npos;
  require<ConfigError>(experts || model.moe.num_experts == 0, "hybrid_override_pattern = ", pattern,
                       " has no layer of experts (E), and num_experts = ", model.moe.num_experts,
                       "; set num_experts = 0");
  require<ConfigError>(!experts || model.moe.num_experts > 0, "hybrid_override_pattern = ", pattern,
                       " has layers of experts (E); set num_experts");
}

void validate_streams(const ModelConfig& model) {
  if (!model.streams.any()) return;
  const auto refuse = [&](bool refused, const std::string& key, const char* why, const char* fix) {
    require<ConfigError>(!refused, "num_residual_streams = ", model.streams.num_residual_streams, " with ", key, ": ",
                         why, "; set ", fix, ", or num_residual_streams = 1");
  };
  refuse(model.skip_connections, "skip_connections = true", "outputs of earlier layers are added to a single stream",
         "skip_connections = false");
  refuse(model.embedding_residual, "embedding_residual = true", "the embedding is mixed into a single stream",
         "embedding_residual = false");
  refuse(model.mtp_num_layers > 0, cat("mtp_num_layers = ", model.mtp_num_layers),
         "modules of multi-token prediction read a single stream", "mtp_num_layers = 0");
  refuse(model.moe.num_experts > 0 && model.moe.moe_parallel_mlp, "moe_parallel_mlp = true",
         "the router would read a single stream", "moe_parallel_mlp = false");
  refuse(model.init_method == "torch", "init_method = torch",
         "no PyTorch program says in which order its weights are drawn", "init_method = normal");
}

void validate_fp8(const ModelConfig& model) {
  require<ConfigError>(model.fp8_recipe != "mxfp8", "fp8_recipe = mxfp8 ", kNoMxfp8,
                       "; set fp8_recipe = \"blockwise\"");
  if (!model.fp8()) return;
  const int64_t wide = model.num_layers_at_start_in_bf16 + model.num_layers_at_end_in_bf16;
  require<ConfigError>(!model.first_last_layers_bf16 || wide < model.num_layers, "first_last_layers_bf16 = true: ",
                       "num_layers_at_start_in_bf16 + num_layers_at_end_in_bf16 = ", wide,
                       " leaves no layer of num_layers = ", model.num_layers,
                       " in 8 bits; make them fewer, or set fp8_format = \"none\"");
  require<ConfigError>(model.dtype == "bfloat16" || model.dtype == "float32", "fp8_format = ", model.fp8_format,
                       " with dtype = ", model.dtype,
                       ": the results of 8-bit products are bfloat16 or float32; set dtype = \"bfloat16\"");
  require<ConfigError>(
      model.moe.num_experts == 0 || expert_backend(model.moe) == ExpertBackend::grouped,
      "fp8_format = ", model.fp8_format, " with moe_expert_backend = ", model.moe.moe_expert_backend,
      ": only grouped products take operands in 8 bits; set moe_expert_backend = \"grouped\" and moe_grouped_gemm = "
      "true, or fp8_format = \"none\"");
  require<ConfigError>(model.moe.num_experts == 0 || model.moe.moe_replicated_experts == 0,
                       "fp8_format = ", model.fp8_format,
                       " with moe_replicated_experts = ", model.moe.moe_replicated_experts,
                       ": replicas of other ranks' experts are multiplied in the model's dtype only; set "
                       "moe_replicated_experts = 0, or fp8_format = \"none\"");
}

void validate_sparse_attention(const ModelConfig& model) {
  model.sparse_attention.validate(model.attention, model.num_layers);
  const std::vector<int64_t> from = model.sparse_attention.sources(model.num_layers);
  require<ConfigError>(model.mtp_num_layers == 0 || from.back() == model.num_layers - 1,
                       "dsa_indexer_freq = ", model.sparse_attention.dsa_indexer_freq,
                       " gives the last layer no indexer, and the ", model.mtp_num_layers,
                       " modules of multi-token prediction are like it: give it one, or set mtp_num_layers = 0");
  require<ConfigError>(!model.sparse_attention.dsa_dense_warmup || model.lora_rank == 0,
                       "dsa_dense_warmup = true trains indexers alone, and lora_rank = ", model.lora_rank,
                       " adapters alone; set dsa_dense_warmup = false, or lora_rank = 0");
}

}  // namespace

Fields ModelConfig::fields() {
  Fields own = {
      Field{"num_layers", &num_layers, "Number of transformer layers"}.between(1, 100000),
      Field{"hidden_size", &hidden_size, "Width of the residual stream"}.between(1, 1 << 20),
      Field{"vocab_size", &vocab_size, "Size of the vocabulary; 0: the tokenizer's"}.between(0, 1 << 28),
      Field{"untie_embeddings_and_output_weights", &untie_embeddings_and_output_weights,
            "Give the output layer a weight of its own instead of the embedding's"},
      Field{"make_vocab_size_divisible_by", &make_vocab_size_divisible_by,
            "Pad the embedding and the output layer with rows of zeros to a multiple of this; the loss ignores them"}
          .between(1, 1 << 20),
      Field{"hidden_dropout", &hidden_dropout,
            "Dropout probability of the embedding and of the outputs of attention and MLP"}
          .at_least(0),
      Field{"neftune_noise_alpha", &neftune_noise_alpha,
            "NEFTune: in training, uniform noise is added to embeddings, of at most this divided by the root of "
            "seq_length times hidden_size; 5 is usual (0: none)"}
          .at_least(0),
      Field{"add_bias_linear", &add_bias_linear, "Give the linear layers of attention and MLP a bias"},
      Field{"add_mlp_bias", &add_mlp_bias,
            "Give the linear layers of dense MLPs a bias, even if add_bias_linear = false"},
      Field{"norm_placement", &norm_placement,
            "Placement of norms: on the inputs of attention and MLP (pre), on their outputs (post), on both, or on "
            "outputs in layers with attention and on inputs in others (post_attention)"}
          .one_of({"pre", "post", "both", "post_attention"}),
      Field{"init_method", &init_method,
            "Weight initialization: Megatron-LM's, by the number of a matrix's inputs, or PyTorch's defaults, equal to "
            "those of a PyTorch program with the same seed"}
          .one_of({"normal", "fan_in", "torch"}),
      Field{
          "init_method_std", &init_method_std,
          "Standard deviation of initial weights: normal divides it by sqrt(2 num_layers) in layers that write to the "
          "residual stream, fan_in by the square root of a matrix's inputs (embeddings have 1)"}
          .above(0),
      Field{
          "value_embedding_freq", &value_embedding_freq,
          "Which table of value embeddings each layer's attention mixes into its values, as a list: 0 for none, 1 for "
          "the first table, as in [1,2]+[0]*4+[1,2]; none: no layer has one"},
      Field{"skip_connections", &skip_connections,
            "Layers of the second half add outputs of the first, the last layer the first one's, each times a learned "
            "factor (U-net)"},
      Field{"embedding_residual", &embedding_residual,
            "Mix the embedding into each layer's input, by two learned factors"},
      Field{"embedding_norm", &embedding_norm, "Normalise the embedding"},
      Field{"layer_scalar", &layer_scalar,
            "Multiply the output of each layer, the residual stream, by a number that is saved with the model and not "
            "trained; 1 at first"},
      Field{"num_kv_shared_layers", &num_kv_shared_layers,
            "Number of last layers without keys and values of their own: they attend to those of the last layer before "
            "them with the same sliding window and rotation"}
          .between(0, 100000),
      Field{"use_double_wide_mlp", &use_double_wide_mlp,
            "Give dense MLPs twice ffn_hidden_size in layers without keys and values of their own"},
      Field{
          "hidden_size_per_layer_input", &hidden_size_per_layer_input,
          "Channels of an embedding of each token for each layer, which a gate multiplies and a projection adds to the "
          "residual stream after the layer's MLP; 0: none"}
          .between(0, 1 << 16),
      Field{"embedding_multiplier", &embedding_multiplier, "Multiplier applied to the embeddings of tokens"}.above(0),
      Field{"residual_multiplier", &residual_multiplier,
            "Multiplier applied to the outputs of attention and MLP before they are added to the residual stream"}
          .above(0),
      Field{"logit_scale", &logit_scale, "Multiplier applied to the logits"}.above(0),
      Field{"logit_soft_cap", &logit_soft_cap,
            "Keep logits within this bound: cap tanh(logit / cap), after logit_scale; 0: no bound"}
          .at_least(0),
      Field{
          "mtp_num_layers", &mtp_num_layers,
          "Modules of multi-token prediction after the last layer: the k-th predicts the token k places after the next"}
          .between(0, 1000),
      Field{"mtp_loss_scaling_factor", &mtp_loss_scaling_factor,
            "Coefficient of the mean of their losses in the step's loss"}
          .above(0),
      Field{"dtype", &dtype, "Dtype of weights and activations; sums and losses are float32 or wider"}.one_of(
          {"float32", "bfloat16", "float16", "float64"}),
      Field{"fp8_format", &fp8_format,
            "8-bit format of the operands of products with weights: of experts, attention's projections, MLPs and "
            "shared experts, forward and backward; hybrid: e4m3, and e5m2 for the gradients of outputs; none: operands "
            "keep dtype"}
          .one_of({"none", "e4m3", "hybrid"}),
      Field{"fp8_recipe", &fp8_recipe,
            "Scales of the operands: blockwise has a float32 scale for each 128 numbers along the sum, of weights for "
            "each "
            "128 by 128; tensorwise has one for each tensor and expert, from its largest magnitude; delayed takes it "
            "from "
            "earlier steps"}
          .one_of({"blockwise", "tensorwise", "delayed"}),
      Field{"fp8_margin", &fp8_margin,
            "Headroom of delayed scales: 2^fp8_margin times the largest magnitude of earlier steps is representable"}
          .between(-64, 64),
      Field{"fp8_amax_history_len", &fp8_amax_history_len,
            "Length in steps of the history of largest magnitudes that fp8_amax_compute_algo = max reads"}
          .between(1, 1 << 16),
      Field{"fp8_amax_compute_algo", &fp8_amax_compute_algo,
            "Source of delayed scales: the largest magnitude of the last step, or the largest of the history"}
          .one_of({"most_recent", "max"}),
      Field{"first_last_layers_bf16", &first_last_layers_bf16,
            "Leave the first and the last layers out of fp8_format: their operands keep dtype"},
      Field{"num_layers_at_start_in_bf16", &num_layers_at_start_in_bf16,
            "Number of first layers that first_last_layers_bf16 leaves out"}
          .between(0, 100000),
      Field{"num_layers_at_end_in_bf16", &num_layers_at_end_in_bf16,
            "Number of last layers that first_last_layers_bf16 leaves out"}
          .between(0, 100000),
      Field{"fp8_keep_weights", &fp8_keep_weights,
            "Convert weights to 8 bits once a step instead of once a micro-batch and pass; takes 2 bytes for each "
            "weight"},
      Field{"freeze", &freeze,
            "Parameters that are not trained, as globs on their names or as kinds (embeddings, head, norms, biases, "
            "routers, matrices, experts), separated by commas"},
      Field{
          "frozen_format", &frozen_format,
          "Format in which matrices that are not trained are kept, and decoded while their layer computes: NormalFloat "
          "of 4 bits (nf4), MXFP4, unsigned integers of 4 bits with an offset (int4), float8 e4m3 (fp8); dtype: as "
          "they are computed with"}
          .one_of({"dtype", "nf4", "mxfp4", "int4", "fp8"}),
      Field{"frozen_experts_format", &frozen_experts_format,
            "Format of experts' matrices that are not trained; same: frozen_format"}
          .one_of({"same", "dtype", "nf4", "mxfp4", "int4", "fp8"}),
      Field{"frozen_head_format", &frozen_head_format,
            "Format of the output layer's matrix if it is not trained and not the embedding; same: frozen_format"}
          .one_of({"same", "dtype", "nf4", "mxfp4", "int4", "fp8"}),
      Field{"lora_rank", &lora_rank,
            "Rank of LoRA adapters: they are trained, and the model's own parameters are frozen; 0: no adapters"}
          .between(0, 1 << 16),
      Field{"lora_alpha", &lora_alpha,
            "The output of adapters is scaled by lora_alpha / lora_rank, or with lora_use_rslora by lora_alpha / "
            "sqrt(lora_rank)"}
          .above(0),
      Field{"lora_use_rslora", &lora_use_rslora,
            "Scale adapters by lora_alpha / sqrt(lora_rank), so that the step of their output does not shrink as the "
            "rank grows"},
      Field{"lora_use_dora", &lora_use_dora,
            "DoRA: rescale the rows of adapted matrices to trained magnitudes, which begin as the rows' norms; not of "
            "experts, and without lora_dropout"},
      Field{"lora_dropout", &lora_dropout, "Dropout probability of the input of adapters"}.at_least(0),
      Field{
          "lora_target_modules", &lora_target_modules,
          "Matrices with adapters, separated by commas: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj "
          "(of MLPs and experts), gates' g_proj and z_proj, Kimi Delta Attention's f_a_proj, f_b_proj, g_a_proj and "
          "g_b_proj, Mamba-2's x_proj, B_proj and C_proj, latent attention's "
          "q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, its indexer's wq_b, wk, weights_proj, and for embeddings "
          "of each layer per_layer_input_gate, per_layer_projection, per_layer_model_projection; empty: all of them"}
          .list_of(lora_target_names()),
      Field{"recompute_granularity", &recompute_granularity,
            "Results that the backward recomputes instead of keeping: none, norms and activations, or whole layers"}
          .one_of({"none", "selective", "full"}),
      Field{"recompute_modules", &recompute_modules,
            "Modules that selective recomputes, separated by commas: layernorm, mlp_act and moe_act (activations of "
            "dense MLPs "
            "with shared experts, and of experts), shared_experts, mlp, moe (whole ones), mla_up_proj (latent "
            "attention's queries, keys and values); empty: the first three"}
          .list_of({"layernorm", "mlp_act", "moe_act", "shared_experts", "mlp", "moe", "mla_up_proj"}),
  };
  return join({{"model", std::move(own)},
               {"model", attention.fields()},
               {"model", linear_attention.fields()},
               {"model", sparse_attention.fields()},
               {"model", compressed_attention.fields()},
               {"model", mamba.fields()},
               {"model", streams.fields()},
               {"model", mlp.fields()},
               {"model", norm.fields()},
               {"moe", moe.fields()}});
}

void ModelConfig::validate() const {
  require<ConfigError>(vocab_size > 0, "vocab_size is not set, and there is no tokenizer to take it from");
  attention.validate(hidden_size, num_layers);
  linear_attention.validate(num_layers);
  if (has_sparse_attention()) validate_sparse_attention(*this);
  if (has_compressed_attention()) compressed_attention.validate(attention, sparse_attention, num_layers);
  mamba.validate(hidden_size, num_layers);
  if (linear_attention.mamba2()) mamba.validate_sizes(hidden_size);
  validate_hybrid(*this);
  require<ConfigError>(!linear_attention.any() || attention.no_attention_freq == "none",
                       "no_attention_freq = ", attention.no_attention_freq,
                       " and linear_attention_freq = ", linear_attention.linear_attention_freq,
                       " choose the same layers' mixers; set one to none");
  require<ConfigError>(!attention.learned_positions() || attention.max_position_embeddings > 0,
                       "position_embedding_type = \"learned_absolute\" needs max_position_embeddings");
  mlp.validate();
  norm.validate();
  require<ConfigError>(!attention.qk_layernorm_full_width || norm.normalization == "RMSNorm",
                       "qk_layernorm_full_width = true with normalization = ", norm.normalization,
                       ": a norm over heads of several ranks must be RMSNorm; set normalization = \"RMSNorm\", or "
                       "qk_layernorm_full_width = false");
  moe.validate(num_layers);
  const bool parallel = moe.num_experts > 0 && moe.moe_parallel_mlp;
  require<ConfigError>(!parallel || norm_placement == "both",
                       "moe_parallel_mlp = true with norm_placement = ", norm_placement,
                       ": the experts and the MLP beside them have norms before and after them; set norm_placement = "
                       "\"both\"");
  require<ConfigError>(!parallel || !mamba.any(),
                       "moe_parallel_mlp = true gives a layer two MLPs, and "
                       "hybrid_override_pattern = ",
                       mamba.hybrid_override_pattern, " one part; set one of them");
  require<ConfigError>(hidden_dropout < 1, "hidden_dropout = ", hidden_dropout,
                       " drops everything; use a probability below 1, such as 0.1");
  require<ConfigError>(!add_bias_linear || moe.num_experts == 0 || moe.moe_expert_add_bias,
                       "add_bias_linear = true: experts have no biases (num_experts = ", moe.num_experts,
                       "); set add_bias_linear = false (Megatron-LM: --disable-bias-linear), or moe_expert_add_bias = "
                       "true");
  require<ConfigError>(!attention.multi_latent_attention || !add_bias_linear,
                       "add_bias_linear = true: latent attention's projections have no biases; set add_bias_linear = "
                       "false, or multi_latent_attention = false");
  validate_joins(*this);
  validate_gemma_layers(*this);
  validate_streams(*this);
  validate_fp8(*this);
  require<ConfigError>(
      mtp_num_layers == 0 || !joins_layers(), "mtp_num_layers = ", mtp_num_layers,
      ": MTP modules read the residual stream only, and cannot be combined with value_embedding_freq, "
      "skip_connections, embedding_residual or hidden_size_per_layer_input; set mtp_num_layers = 0, or "
      "leave these out");
  require<ConfigError>(mtp_num_layers == 0 || init_method != "torch", "mtp_num_layers = ", mtp_num_layers,
                       " with init_method = torch: no PyTorch program says in which order its weights are drawn; use "
                       "init_method = normal");
  read_recompute_modules(*this);
  lora_of(*this);
  Freeze(*this);  // reads the patterns
  const int64_t rows =
      attention.learned_positions() ? std::min(vocab_size, attention.max_position_embeddings) : vocab_size;
  require<ConfigError>(init_method != "torch" || rows * hidden_size >= TorchRandom::kLeastNormals,
                       "init_method = torch: PyTorch draws an embedding of less than ", TorchRandom::kLeastNormals,
                       " values in another way; use init_method = normal");
}

std::vector<LayerSpec> ModelConfig::layers() const {
  std::vector<MixerSpec> of_layers = mixers_of_layers(*this);
  std::vector<bool> with_experts = moe.moe_layers(num_layers);
  const std::vector<HybridLayer> hybrid = mamba.layers(num_layers);
  for (size_t i = 0; i < hybrid.size(); ++i) with_experts[i] = hybrid[i] == HybridLayer::moe;
  const std::vector<int64_t> tables = value_embeddings();
  std::vector<LayerSpec> layers;
  for (size_t i = 0; i < of_layers.size(); ++i) {
    LayerSpec& layer = layers.emplace_back(LayerSpec{std::move(of_layers[i]), with_experts[i], mlp});
    if (auto* const attends = std::get_if<MultiHeadSpec>(&layer.mixer)) {
      attends->value_table = tables[i];
      attends->value_scale = value_embedding_freq != kNoTables;
    }
    layer.embedding_residual = embedding_residual;
    layer.table_of_experts = layer.moe && static_cast<int64_t>(i) < moe.moe_n_hash_layers;
    layer.norm_placement = norm_placement;
    if (norm_placement == "post_attention") layer.norm_placement = attention_of(layer.mixer) ? "post" : "pre";
    if (const size_t mirrored = of_layers.size() - 1 - i; skip_connections && mirrored < i)
      layer.skip_from = static_cast<int64_t>(mirrored);
    const auto* const heads = std::get_if<MultiHeadSpec>(&layer.mixer);
    const bool wide = use_double_wide_mlp && heads != nullptr && heads->borrows();
    if (wide && !layer.moe) layer.mlp.ffn_hidden_size *= 2;
    if (layer.moe && moe.moe_parallel_mlp) layer.parallel_mlp = mlp;
    if (layer.parallel_mlp && wide) layer.parallel_mlp->ffn_hidden_size *= 2;
    if (layer.moe && moe.moe_ffn_hidden_size > 0) layer.mlp.ffn_hidden_size = moe.moe_ffn_hidden_size;
    const bool mixes = !hybrid.empty() && !std::holds_alternative<NoMixer>(layer.mixer);
    if (mixes) layer.mlp.ffn_hidden_size = 0;
  }
  return layers;
}

bool has_vocabulary_rows(std::string_view parameter) {
  return parameter == "embedding.weight" || parameter == "head.weight" || parameter == "per_layer_embedding.weight";
}

std::vector<LayerSpec> layers_with_mtp(const ModelConfig& config) {
  std::vector<LayerSpec> layers = config.layers();
  const LayerSpec last = layers.back();
  layers.insert(layers.end(), static_cast<size_t>(config.mtp_num_layers), last);
  return layers;
}

std::string ModelConfig::joining_key() const {
  if (skip_connections) return "skip_connections = true";
  if (embedding_residual) return "embedding_residual = true";
  return hidden_size_per_layer_input > 0 ? cat("hidden_size_per_layer_input = ", hidden_size_per_layer_input)
                                         : cat("value_embedding_freq = ", value_embedding_freq);
}

MixerModel ModelConfig::around_mixers() const {
  return {hidden_size, linear_bias(), norm, lora_of(*this), read_recompute_modules(*this).mla_up_proj};
}

bool ModelConfig::fp8(int64_t layer) const {
  if (!fp8() || !first_last_layers_bf16) return fp8();
  return layer >= num_layers_at_start_in_bf16 && layer < num_layers - num_layers_at_end_in_bf16;
}

std::vector<int64_t> ModelConfig::value_embeddings() const {
  if (value_embedding_freq == kNoTables) return std::vector<int64_t>(static_cast<size_t>(num_layers), 0);
  const std::vector<int64_t> tables = read_layer_numbers(value_embedding_freq, num_layers);
  require<ConfigError>(tables.size() == static_cast<size_t>(num_layers) && *std::ranges::max_element(tables) > 0,
                       "value_embedding_freq = ", value_embedding_freq, ": must be none, or a list of the ", num_layers,
                       " layers' tables, from 1 on, with 0 for none, as in [1]+[0]*", num_layers - 1);
  return tables;
}

int64_t ModelConfig::value_embedding_tables() const {
  return std::ranges::max(value_embeddings());
}

Recompute ModelConfig::recompute() const {
  if (recompute_granularity == "none") return Recompute::none;
  return recompute_granularity == "selective" ? Recompute::selective : Recompute::full;
}

namespace {

void add(RecomputeModules& all, const std::string& name) {
  constexpr std::array<std::pair<const char*, bool RecomputeModules::*>, 7> kModules = {
      {{"layernorm", &RecomputeModules::layernorm},
       {"mlp_act", &RecomputeModules::mlp_act},
       {"moe_act", &RecomputeModules::moe_act},
       {"shared_experts", &RecomputeModules::shared_experts},
       {"mlp", &RecomputeModules::mlp},
       {"moe", &RecomputeModules::moe},
       {"mla_up_proj", &RecomputeModules::mla_up_proj}}};
  if (name == "core_attn") return;
  const auto found = std::ranges::find(kModules, name, [](const auto& module) { return module.first; });
  require<ConfigError>(
      found != kModules.end(), "recompute_modules: \"", name,
      "\" cannot be recomputed by itself; use some of layernorm, mlp_act, moe_act, shared_experts, mlp, moe, "
      "mla_up_proj and core_attn, or recompute_granularity = full");
  all.*found->second = true;
}

}  // namespace

RecomputeModules read_recompute_modules(const ModelConfig& config) {
  RecomputeModules all;
  std::istringstream names(config.recompute_modules);
  for (std::string name; std::getline(names, name, ',');) {
    std::erase(name, ' ');
    add(all, name);
  }
  require<ConfigError>(!all.mla_up_proj || config.attention.multi_latent_attention,
                       "recompute_modules: mla_up_proj recomputes queries, keys and values that are made from latents: "
                       "leave it out, or set multi_latent_attention = true");
  if (config.recompute() != Recompute::selective) return {};
  if (config.recompute_modules.empty()) all.layernorm = all.mlp_act = all.moe_act = true;
  return all;
}

}  // namespace witan

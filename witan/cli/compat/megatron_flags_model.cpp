// Rows of the table: the model, its experts, and what keeps it from overfitting.
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/compat/megatron_rules.h"

namespace witan::cli {

MegatronSection megatron_model_flags() {
  const std::string encoder = "Witan's models are decoders";
  const std::string latent = "multi-head latent attention is not supported; `--group-query-attention` is";
  const std::string scaling = "RoPE scaling is not supported; leave it out and train at the final sequence length";
  return {
      "Model",
      {
          same("--num-layers"),
          refused("--encoder-num-layers", encoder + ": use `--num-layers`", Takes::one),
          refused("--decoder-num-layers", encoder + ": use `--num-layers`", Takes::one),
          same("--hidden-size"),
          same("--ffn-hidden-size"),
          same("--num-attention-heads"),
          same("--kv-channels"),
          ruled("--group-query-attention", Takes::nothing, rules::group_query_attention,
                "`num_query_groups = 1`, unless `--num-query-groups` is given; without it `num_attention_heads`"),
          ruled("--num-query-groups", Takes::one, rules::num_query_groups,
                "`num_query_groups`; refused without `--group-query-attention`, since Megatron-LM would ignore it"),
          same("--max-position-embeddings"),
          same("--position-embedding-type"),
          sets("--use-rotary-position-embeddings", "position_embedding_type", "rope"),
          ruled("--no-position-embedding", Takes::nothing, rules::no_position_embedding,
                "no effect with `--position-embedding-type rope` or `none`; otherwise refused, as in Megatron-LM"),
          same("--rotary-base"),
          same("--rotary-percent"),
          same_truth("--rotary-interleaved"),
          refused("--rotary-seq-len-interpolation-factor", scaling, Takes::one),
          refused("--use-rope-scaling", scaling),
          refused("--rope-scaling-factor", scaling, Takes::one),
          only("--rope-type", {"rope"}, "only plain RoPE is supported"),
          ruled("--no-rope-freq", Takes::one, rules::layer_pattern,
                "`no_rope_freq`: a number, or a list in which 1 is a layer without rotary positions"),
          renamed("--window-size", "window_size", "of tokens before and after the present one, as in `4096,0`"),
          ruled("--window-attn-skip-freq", Takes::one, rules::layer_pattern,
                "`window_attn_skip_freq`: a number, or a list in which 0 is a layer of full attention"),
          renamed("--make-vocab-size-divisible-by", "make_vocab_size_divisible_by",
                  "the rows that it adds do not enter the loss"),
          same("--normalization"),
          same("--norm-epsilon"),
          refused("--apply-layernorm-1p",
                  "norm weights are initialised to one, not to zero with an added one; leave it out"),
          refused("--apply-residual-connection-post-layernorm",
                  "the residual connection starts before the norm; leave it out"),
          refused("--qk-layernorm", "queries and keys are not normalised; leave it out"),
          same_truth("--swiglu"),
          sets("--openai-gelu", "gelu_tanh", "true"),
          same_truth("--squared-relu"),
          ruled("--quick-geglu", Takes::nothing, rules::quick_geglu,
                "`swiglu = true` with `glu_activation_scale = 1.702`, which is the same function"),
          same("--activation-func-clamp-value"),
          same("--glu-linear-offset"),
          refused("--add-qkv-bias", "either all linear layers have biases (leave `--disable-bias-linear` out) or none"),
          sets("--disable-bias-linear", "add_bias_linear", "false"),
          same_truth("--untie-embeddings-and-output-weights"),
          refused("--multi-latent-attention", latent),
          refused("--q-lora-rank", latent, Takes::one),
          refused("--kv-lora-rank", latent, Takes::one),
          refused("--qk-head-dim", latent, Takes::one),
          refused("--qk-pos-emb-head-dim", latent, Takes::one),
          refused("--v-head-dim",
                  "Megatron-LM reads it beside `--multi-latent-attention` alone, which is not supported; for other "
                  "attention set the key `v_head_dim` in a file (`--config`)",
                  Takes::one),
          only("--mtp-num-layers", {"0"}, "multi-token prediction is not supported"),
          refused("--spec", "the other flags define the model; leave it out", Takes::some),
          refused("--yaml-cfg", "YAML files are not read: give flags, or a TOML file with `--config`", Takes::one),
          same("--init-method-std"),
          refused("--init-method-xavier-uniform",
                  "initial weights are drawn from a normal distribution: `--init-method-std`"),
          same("--seed"),
          refused("--data-parallel-random-init", "all ranks start with the same weights; leave it out"),
      }};
}

MegatronSection megatron_moe_flags() {
  const std::string upcycling =
      "give the dense model instead: `--upcycle RUN`, and `--upcycle-method granular` for slices";
  const std::string dispatch = "rows go straight to the ranks of their experts: `moe_token_dispatcher_type`";
  return {"Mixture of Experts",
          {
              same("--num-experts"),
              same("--expert-model-parallel-size"),
              renamed("--moe-ffn-hidden-size", "moe_ffn_hidden_size", "without it `ffn_hidden_size`"),
              ruled("--moe-layer-freq", Takes::one, rules::layer_pattern,
                    "`moe_layer_freq`: a number, or a list of 0 and 1 as in `([1]*3+[0]*1)*3`"),
              same("--moe-router-topk"),
              same_truth("--moe-router-pre-softmax"),
              ruled("--moe-router-load-balancing-type", Takes::some, rules::load_balancing_type,
                    "`moe_router_load_balancing_type`: `aux_loss`, `seq_aux_loss`, `global_aux_loss` or several of them, "
                    "`quantile_balancing` or `none`; `sinkhorn` sets `moe_router_selection`; others are refused"),
              ruled("--moe-aux-loss-coeff", Takes::some, rules::aux_loss_coeff,
                    "`moe_aux_loss_coeff`: one, or as many as there are losses"),
              same("--moe-z-loss-coeff"),
              same("--moe-router-score-function"),
              same("--moe-router-num-groups"),
              same("--moe-router-group-topk"),
              same("--moe-router-topk-scaling-factor"),
              same_truth("--moe-router-enable-expert-bias"),
              same("--moe-router-bias-update-rate"),
              only("--moe-router-dtype", {"fp32"}, "the router's softmax and losses are float32"),
              refused("--moe-router-padding-for-fp8", "fp8 is not supported: use `--bf16`"),
              sets("--moe-router-force-load-balancing", "moe_router_selection", "uniform"),
              same("--moe-input-jitter-eps"),
              same("--moe-expert-capacity-factor"),
              renamed("--moe-token-capacity-factor", "moe_expert_capacity_factor"),
              same_truth("--moe-pad-expert-input-to-capacity"),
              same("--moe-token-drop-policy"),
              same_truth("--moe-grouped-gemm"),
              harmless("--moe-use-legacy-grouped-gemm", "there is one grouped GEMM"),
              ruled("--moe-token-dispatcher-type", Takes::one, rules::token_dispatcher_type,
                    "`moe_token_dispatcher_type`: `alltoall`, which `flex` is too, or `allgather`"),
              same("--moe-latent-size"),
              harmless("--moe-enable-deepep", dispatch),
              harmless("--moe-flex-dispatcher-backend", dispatch, Takes::one),
              harmless("--moe-permute-fusion", "a choice of kernels"),
              harmless("--moe-router-fusion", "a choice of kernels"),
              harmless("--overlap-moe-expert-parallel-comm", "an overlap"),
              harmless("--delay-wgrad-compute", "an overlap"),
              same_truth("--moe-per-layer-logging"),
              same("--moe-shared-expert-intermediate-size"),
              same_truth("--moe-shared-expert-gate"),
              harmless("--moe-shared-expert-overlap", "an overlap of shared experts with the dispatch"),
              refused("--moe-extended-tp", "Megatron-LM has deprecated it: use `--expert-tensor-parallel-size`"),
              same("--expert-tensor-parallel-size"),
              refused("--moe-layer-recompute",
                      "Megatron-LM has deprecated it: use `--recompute-granularity selective --recompute-modules moe`"),
              refused("--moe-use-upcycling", upcycling),
              refused("--moe-upcycling-granularity", upcycling, Takes::one),
          }};
}

MegatronSection megatron_regularization_flags() {
  const std::string constant = "weight decay is constant: `--weight-decay`";
  return {"Regularization and optimizer",
          {
              same("--attention-dropout"),
              same("--hidden-dropout"),
              same("--weight-decay"),
              refused("--start-weight-decay", constant, Takes::one),
              refused("--end-weight-decay", constant, Takes::one),
              only("--weight-decay-incr-style", {"constant"}, "weight decay is constant"),
              same("--clip-grad"),
              same("--optimizer"),
              same("--adam-beta1"),
              same("--adam-beta2"),
              same("--adam-eps"),
              same("--sgd-momentum"),
              harmless("--use-precision-aware-optimizer", "dtypes have separate flags"),
              ruled("--exp-avg-dtype", Takes::one, rules::exp_avg_dtype, "`exp_avg_dtype`: fp32 or bf16"),
              ruled("--exp-avg-sq-dtype", Takes::one, rules::exp_avg_sq_dtype, "`exp_avg_sq_dtype`: fp32 or bf16"),
              only("--main-params-dtype", {"fp32"}, "the optimizer's masters are float32"),
              ruled("--main-grads-dtype", Takes::one, rules::main_grads_dtype, "`gradient_dtype`: fp32 or bf16"),
              harmless("--optimizer-cpu-offload", "there is no offloading"),
              harmless("--optimizer-offload-fraction", "there is no offloading", Takes::one),
          }};
}

}  // namespace witan::cli

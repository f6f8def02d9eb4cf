// Rows of the table: the model, its experts, and what keeps it from overfitting.
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/compat/megatron_rules.h"

namespace witan::cli {

MegatronSection megatron_model_flags() {
  const std::string encoder = "Witan's models are decoders";
  return {"Model",
          {
              same("--num-layers"),
              refused("--encoder-num-layers", encoder + ": use `--num-layers`", Takes::one),
              refused("--decoder-num-layers", encoder + ": use `--num-layers`", Takes::one),
              same("--hidden-size"),
              same("--ffn-hidden-size"),
              same("--num-attention-heads"),
              ruled("--kv-channels", Takes::one, rules::kv_channels,
                    "`kv_channels`; no effect with `--multi-latent-attention`, as in Megatron-LM"),
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
              ruled("--rotary-seq-len-interpolation-factor", Takes::one, rules::interpolation_factor,
                    "`rope_scaling_type = linear` with this `rotary_scaling_factor`; refused beside other scalings"),
              ruled("--use-rope-scaling", Takes::nothing, rules::use_rope_scaling,
                    "`rope_scaling_type = llama3` with `rotary_scaling_factor = 8`, unless `--rope-scaling-factor` is "
                    "given, of `original_max_position_embeddings = 8192`"),
              ruled("--rope-scaling-factor", Takes::one, rules::rope_scaling_factor,
                    "`rotary_scaling_factor`; refused without `--use-rope-scaling`, since Megatron-LM would ignore it"),
              ruled("--rope-type", Takes::one, rules::rope_type,
                    "`yarn` is `rope_scaling_type = yarn`; `rope` is plain RoPE"),
              same("--rotary-scaling-factor"),
              same("--mscale"),
              same("--mscale-all-dim"),
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
                      "norm weights are initialised to one, not to zero with an added one, which trains the same "
                      "function: leave it out"),
              refused("--apply-residual-connection-post-layernorm",
                      "the residual connection starts before the norm, and models of the other kind are not supported"),
              same_truth("--qk-layernorm"),
              same_truth("--qk-l2-norm"),
              same("--softmax-type"),
              same_truth("--qk-clip"),
              same("--qk-clip-threshold"),
              same("--qk-clip-alpha"),
              same_truth("--swiglu"),
              sets("--openai-gelu", "gelu_tanh", "true"),
              same_truth("--squared-relu"),
              ruled("--quick-geglu", Takes::nothing, rules::quick_geglu,
                    "`swiglu = true` with `glu_activation_scale = 1.702`, which is the same function"),
              same("--activation-func-clamp-value"),
              same("--glu-linear-offset"),
              same_truth("--add-qkv-bias"),
              sets("--disable-bias-linear", "add_bias_linear", "false"),
              same_truth("--untie-embeddings-and-output-weights"),
              ruled("--multi-latent-attention", Takes::nothing, rules::multi_latent_attention,
                    "`multi_latent_attention = true`, `rotary_interleaved = true`, and where nothing else is given "
                    "`rope_scaling_type = yarn`, `kv_lora_rank = 32` and `v_head_dim = 128`; refused without "
                    "`--qk-layernorm`, since latents are always normalised"),
              same("--q-lora-rank"),
              same("--kv-lora-rank"),
              same("--qk-head-dim"),
              same("--qk-pos-emb-head-dim"),
              ruled("--v-head-dim", Takes::one, rules::v_head_dim,
                    "`v_head_dim`; refused without `--multi-latent-attention`, since Megatron-LM would ignore it: for "
                    "other attention set the key in a file (`--config`)"),
              same("--mtp-num-layers"),
              same("--mtp-loss-scaling-factor"),
              refused("--spec",
                      "layers of Python modules are not read: describe the model by the other flags, or by keys of a "
                      "TOML file (`--config`)",
                      Takes::some),
              refused("--yaml-cfg", "YAML files are not read: give flags, or a TOML file with `--config`", Takes::one),
              same("--init-method-std"),
              refused("--init-method-xavier-uniform",
                      "initial weights are drawn from a normal distribution: `--init-method-std`"),
              same("--seed"),
              refused("--data-parallel-random-init",
                      "replicas that start with different weights are not supported: all ranks have those of `--seed`"),
          }};
}

MegatronSection megatron_moe_flags() {
  const std::string upcycling =
      "give the dense model instead: `--upcycle RUN`, and `--upcycle-method granular` for slices";
  const std::string dispatch =
      "rows go straight to the ranks of their experts, or once to each host: `hierarchical_expert_parallel_size`";
  return {
      "Mixture of Experts",
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
                "`quantile_balancing` or `none` (`None`); `sinkhorn` sets `moe_router_selection`; others are refused"),
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
          harmless("--moe-router-padding-for-fp8", "products in 8 bits take any number of rows"),
          sets("--moe-router-force-load-balancing", "moe_router_selection", "uniform"),
          same("--moe-input-jitter-eps"),
          same("--moe-expert-capacity-factor"),
          renamed("--moe-token-capacity-factor", "moe_expert_capacity_factor"),
          same_truth("--moe-pad-expert-input-to-capacity"),
          same("--moe-token-drop-policy"),
          ruled("--moe-token-dropping", Takes::nothing, rules::token_dropping,
                "no effect beside `--moe-expert-capacity-factor`, which drops tokens; otherwise refused"),
          ruled("--moe-use-megablocks-dmoe", Takes::nothing, rules::megablocks,
                "no effect: experts without a capacity are dropless; refused beside one"),
          same_truth("--moe-grouped-gemm"),
          harmless("--moe-use-legacy-grouped-gemm", "there is one grouped GEMM"),
          ruled("--moe-token-dispatcher-type", Takes::one, rules::token_dispatcher_type,
                "`moe_token_dispatcher_type`: `alltoall`, which `flex` is too, or `allgather`"),
          same("--moe-latent-size"),
          harmless("--moe-enable-deepep", dispatch),
          harmless("--moe-flex-dispatcher-backend", dispatch, Takes::one),
          harmless("--moe-deepep-num-sms", dispatch, Takes::one),
          harmless("--moe-hybridep-num-sms", dispatch, Takes::one),
          harmless("--moe-permute-fusion", "a choice of kernels"),
          harmless("--moe-router-fusion", "a choice of kernels"),
          harmless("--overlap-moe-expert-parallel-comm", "an overlap"),
          harmless("--delay-wgrad-compute", "an overlap"),
          same_truth("--moe-per-layer-logging"),
          same("--moe-shared-expert-intermediate-size"),
          same_truth("--moe-shared-expert-gate"),
          same_truth("--moe-shared-expert-overlap"),
          refused("--moe-extended-tp", "deprecated by Megatron-LM: use `--expert-tensor-parallel-size`"),
          same("--expert-tensor-parallel-size"),
          refused("--moe-layer-recompute",
                  "deprecated by Megatron-LM: use `--recompute-granularity selective --recompute-modules moe`"),
          refused("--moe-use-upcycling", upcycling),
          refused("--moe-upcycling-granularity", upcycling, Takes::one),
      }};
}

MegatronSection megatron_regularization_flags() {
  const std::string offloading =
      "the optimizer's state stays in the memory of its rank: divide it (`--use-distributed-optimizer`), or narrow it "
      "(`--exp-avg-dtype bf16`)";
  return {"Regularization and optimizer",
          {
              same("--attention-dropout"),
              same("--hidden-dropout"),
              ruled("--weight-decay", Takes::one, rules::weight_decay,
                    "`weight_decay`; no effect beside `--end-weight-decay`, as in Megatron-LM"),
              ruled("--start-weight-decay", Takes::one, rules::start_weight_decay,
                    "`start_weight_decay`; refused without `--weight-decay-incr-style linear` or `cosine`, as in "
                    "Megatron-LM"),
              ruled("--end-weight-decay", Takes::one, rules::end_weight_decay, "`weight_decay`; likewise"),
              ruled("--weight-decay-incr-style", Takes::one, rules::weight_decay_incr_style,
                    "`weight_decay_incr_style`; other styles than `constant` need `--start-weight-decay` and "
                    "`--end-weight-decay`"),
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
              refused("--optimizer-cpu-offload", offloading),
              only("--optimizer-offload-fraction", {"0"}, offloading),
          }};
}

}  // namespace witan::cli

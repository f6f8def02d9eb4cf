// Rows of the table: the model, its experts, and what keeps it from overfitting.
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/compat/megatron_rules.h"

namespace witan::cli {

MegatronSection megatron_model_flags() {
  const std::string encoder = "Witan's models are decoders";
  const std::string latent = "multi-head latent attention is not built; `--group-query-attention` is";
  const std::string scaling = "positions are not rescaled; leave it out, and train at the length that is wanted";
  return {"Model",
          {
              same("--num-layers"),
              refused("--encoder-num-layers", encoder + ": use `--num-layers`", Takes::one),
              refused("--decoder-num-layers", encoder + ": use `--num-layers`", Takes::one),
              same("--hidden-size"),
              ruled("--ffn-hidden-size", Takes::one, rules::ffn_hidden_size,
                    "`ffn_hidden_size`; of dense layers alone, where `--moe-ffn-hidden-size` is given"),
              same("--num-attention-heads"),
              same("--kv-channels"),
              ruled("--group-query-attention", Takes::nothing, rules::group_query_attention,
                    "`num_query_groups = 1`, unless `--num-query-groups` is given; without it `num_attention_heads`"),
              ruled("--num-query-groups", Takes::one, rules::num_query_groups,
                    "`num_query_groups`; refused without `--group-query-attention`, as Megatron-LM would ignore it"),
              same("--max-position-embeddings"),
              same("--position-embedding-type"),
              sets("--use-rotary-position-embeddings", "position_embedding_type", "rope"),
              ruled("--no-position-embedding", Takes::nothing, rules::no_position_embedding,
                    "nothing, beside `--position-embedding-type rope` or `none`; refused without, as Megatron-LM does"),
              same("--rotary-base"),
              same("--rotary-percent"),
              same_truth("--rotary-interleaved"),
              refused("--rotary-seq-len-interpolation-factor", scaling, Takes::one),
              refused("--use-rope-scaling", scaling),
              refused("--rope-scaling-factor", scaling, Takes::one),
              only("--rope-type", {"rope"}, "plain rotary positions are what there is"),
              refused("--no-rope-freq", "every layer has the same positions; leave it out", Takes::one),
              refused("--window-size", "attention reaches back to the first token; leave it out", Takes::some),
              renamed("--make-vocab-size-divisible-by", "make_vocab_size_divisible_by",
                      "rows that it adds take no part in the loss"),
              same("--normalization"),
              same("--norm-epsilon"),
              refused("--apply-layernorm-1p", "weights of norms begin at one, not at zero beside a one; leave it out"),
              refused("--apply-residual-connection-post-layernorm",
                      "the residual stream is taken in front of the norm; leave it out"),
              refused("--qk-layernorm", "queries and keys are not normalised; leave it out"),
              same_truth("--swiglu"),
              sets("--openai-gelu", "gelu_tanh", "true"),
              refused("--squared-relu", "there are SwiGLU (`--swiglu`) and GELU"),
              refused("--quick-geglu", "there are SwiGLU (`--swiglu`) and GELU"),
              refused("--add-qkv-bias",
                      "attention's projections have biases with all others (leave "
                      "`--disable-bias-linear` out), or none has"),
              sets("--disable-bias-linear", "add_bias_linear", "false"),
              same_truth("--untie-embeddings-and-output-weights"),
              refused("--multi-latent-attention", latent),
              refused("--q-lora-rank", latent, Takes::one),
              refused("--kv-lora-rank", latent, Takes::one),
              refused("--qk-head-dim", latent, Takes::one),
              refused("--qk-pos-emb-head-dim", latent, Takes::one),
              refused("--v-head-dim", latent, Takes::one),
              only("--mtp-num-layers", {"0"}, "the model predicts one token at a time"),
              refused("--spec", "the model is what the other flags say; leave it out", Takes::some),
              refused("--yaml-cfg", "its keys are not read: give flags, or a TOML file with `--config`", Takes::one),
              same("--init-method-std"),
              refused("--init-method-xavier-uniform", "initial weights are normal: `--init-method-std`"),
              same("--seed"),
              refused("--data-parallel-random-init", "all ranks begin with the same weights; leave it out"),
          }};
}

MegatronSection megatron_moe_flags() {
  const std::string shared = "shared experts are not built; leave them out";
  const std::string groups = "experts are chosen from all of them, not from groups; leave it out";
  const std::string upcycling = "a dense model cannot be made into experts; train from the start";
  const std::string dispatch = "how rows travel is Witan's own: by one uneven all-to-all";
  return {"Mixture of Experts",
          {
              same("--num-experts"),
              same("--expert-model-parallel-size"),
              ruled("--moe-ffn-hidden-size", Takes::one, rules::moe_ffn_hidden_size,
                    "`ffn_hidden_size`, where all layers hold experts; refused where some are dense"),
              ruled("--moe-layer-freq", Takes::one, rules::moe_layer_freq,
                    "`moe_layer_freq`: a number, or a list of 0 and 1 as in `([1]*3+[0]*1)*3`"),
              same("--moe-router-topk"),
              same_truth("--moe-router-pre-softmax"),
              ruled("--moe-router-load-balancing-type", Takes::some, rules::load_balancing_type,
                    "`moe_router_load_balancing_type`: `aux_loss`, `seq_aux_loss` or `none`; others are refused"),
              same("--moe-aux-loss-coeff"),
              same("--moe-z-loss-coeff"),
              only("--moe-router-score-function", {"softmax"}, "the router is a softmax"),
              refused("--moe-router-num-groups", groups, Takes::one),
              refused("--moe-router-group-topk", groups, Takes::one),
              only("--moe-router-topk-scaling-factor", {"1"}, "chosen weights are not scaled"),
              refused("--moe-router-enable-expert-bias", "load is balanced by a loss: `--moe-aux-loss-coeff`"),
              harmless("--moe-router-bias-update-rate", "there is no expert bias", Takes::one),
              only("--moe-router-dtype", {"fp32"}, "the router's softmax and losses are float32"),
              refused("--moe-router-padding-for-fp8", "fp8 is not built: use `--bf16`"),
              refused("--moe-router-force-load-balancing", "tokens go where the router sends them; leave it out"),
              only("--moe-input-jitter-eps", {"0"}, "the router's input gets no noise"),
              same("--moe-expert-capacity-factor"),
              renamed("--moe-token-capacity-factor", "moe_expert_capacity_factor"),
              same_truth("--moe-pad-expert-input-to-capacity"),
              same("--moe-token-drop-policy"),
              same_truth("--moe-grouped-gemm"),
              harmless("--moe-use-legacy-grouped-gemm", "there is one grouped product"),
              harmless("--moe-token-dispatcher-type", dispatch, Takes::one),
              harmless("--moe-enable-deepep", dispatch),
              harmless("--moe-flex-dispatcher-backend", dispatch, Takes::one),
              harmless("--moe-permute-fusion", "a choice of kernels"),
              harmless("--moe-router-fusion", "a choice of kernels"),
              harmless("--overlap-moe-expert-parallel-comm", "an overlap"),
              harmless("--delay-wgrad-compute", "an overlap"),
              harmless("--moe-per-layer-logging", "the report shows experts by layer"),
              refused("--moe-shared-expert-intermediate-size", shared, Takes::one),
              harmless("--moe-shared-expert-overlap", "an overlap of shared experts, and there are none"),
              refused("--moe-extended-tp", "Megatron-LM has given it up: use `--expert-tensor-parallel-size`"),
              same("--expert-tensor-parallel-size"),
              refused("--moe-layer-recompute", "whole blocks are computed again: `--recompute-granularity full`"),
              refused("--moe-use-upcycling", upcycling),
              refused("--moe-upcycling-granularity", upcycling, Takes::one),
          }};
}

MegatronSection megatron_regularization_flags() {
  const std::string constant = "weight decay is constant: `--weight-decay`";
  const std::string states = "the optimizer's state and masters are float32";
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
              harmless("--use-precision-aware-optimizer", "its dtypes are flags of their own"),
              only("--exp-avg-dtype", {"fp32"}, states),
              only("--exp-avg-sq-dtype", {"fp32"}, states),
              only("--main-params-dtype", {"fp32"}, states),
              ruled("--main-grads-dtype", Takes::one, rules::main_grads_dtype, "`gradient_dtype`: fp32 or bf16"),
              harmless("--optimizer-cpu-offload", "all memory is the host's"),
              harmless("--optimizer-offload-fraction", "all memory is the host's", Takes::one),
          }};
}

}  // namespace witan::cli

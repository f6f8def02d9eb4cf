#include "witan/cli/help/common_keys.h"

#include <algorithm>
#include <set>

#include "witan/train/config/config.h"

namespace witan::cli {
namespace {

// "--moe-router-topk" and "--no-swiglu" of their keys.
std::string key_of_flag(std::string flag) {
  flag.erase(0, flag.find_first_not_of('-'));
  std::ranges::replace(flag, '-', '_');
  return flag;
}

std::set<std::string> sections_of_configuration() {
  RunConfig config;
  std::set<std::string> sections;
  for (const Field& field : config.fields()) sections.insert(field.section);
  return sections;
}

}  // namespace

bool is_common_key(std::string_view key) {
  static constexpr std::string_view kCommon[] = {
      // the run
      "run",
      "runs_folder",
      "train_iters",
      "micro_batch_size",
      "global_batch_size",
      "seed",
      "eval_interval",
      "save_interval",
      "keep_last",
      "keep_best",
      "early_stopping_patience",
      "init_from",
      // the model
      "num_layers",
      "hidden_size",
      "ffn_hidden_size",
      "num_attention_heads",
      "num_query_groups",
      "dtype",
      "recompute_granularity",
      "num_experts",
      "moe_router_topk",
      "moe_ffn_hidden_size",
      "lora_rank",
      // data
      "data",
      "data_path",
      "tokenizer",
      "tokenizer_vocab_size",
      "seq_length",
      "valid_data",
      "sft",
      // optimization
      "optimizer",
      "lr",
      "min_lr",
      "lr_warmup_iters",
      "lr_decay_style",
      "weight_decay",
      "clip_grad",
      // the machine
      "mesh",
      "ranks",
      "device",
      "threads",
      "deterministic",
  };
  return std::ranges::find(kCommon, key) != std::end(kCommon);
}

bool is_uncommon_flag(const std::string& flag, const std::string& group) {
  static const std::set<std::string> sections = sections_of_configuration();
  return sections.contains(group) && !is_common_key(key_of_flag(flag));
}

}  // namespace witan::cli

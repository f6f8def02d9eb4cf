// The data keys of a run, with their help and bounds, and the combinations of them that are refused.
#include <algorithm>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/megatron/blend.h"
#include "witan/train/config/config.h"

namespace witan {
namespace {

bool is_set_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && std::ranges::all_of(name, fits);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_validation_sets(const std::string& valid_data) {
  std::vector<std::pair<std::string, std::string>> sets;
  std::istringstream pieces(valid_data);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    const size_t equals = piece.find('=');
    const std::string name = piece.substr(0, equals);
    require<ConfigError>(equals != piece.npos && equals + 1 < piece.size() && is_set_name(name),
                         "valid_data: ", clipped(piece), " is not NAME=FILE with a name of letters, digits, _ and -");
    require<ConfigError>(std::ranges::find(sets, name, [](const auto& set) { return set.first; }) == sets.end(),
                         "valid_data: there are two sets with the name ", name);
    sets.emplace_back(name, piece.substr(equals + 1));
  }
  return sets;
}

Fields DataConfig::fields() {
  return join(
      {{"data",
        {
            Field{"data", &data,
                  "Training text: files or folders, separated by commas, as a flag also by spaces (.txt, .jsonl, "
                  ".parquet, .arrow, .tar, .mds, .gz, .zst …); empty: the English text of Debian's perl-doc"},
            Field{"data_path", &data_path,
                  "Prefix of token shards written by `witan data`, or tokens of llm.c or modded-nanogpt (.bin) or of "
                  "numpy (.npy), instead of data; several are separated by commas, each with or without a weight "
                  "before it"},
            Field{"data_weights", &data_weights,
                  "Weights of the datasets of data_path, or of the files and folders of data, separated by commas; or "
                  "how many epochs of each are read relative to the others, as 2x,1x; empty: the weights in data_path, "
                  "else the datasets' numbers of samples"},
            Field{"data_temperature", &data_temperature, "Raise weights to the power of 1 / data_temperature"}.between(
                1e-3, 1e3),
            Field{"data_max_epochs", &data_max_epochs,
                  "Maximum number of epochs over each dataset of a mixture (0: unlimited)"}
                .at_least(0),
            Field{"data_schedule", &data_schedule,
                  "Change the weights from given steps on: STEP=W1,W2;STEP=W1,W2, with steps counted from 1; empty: "
                  "constant weights"},
            Field{"data_samples", &data_samples,
                  "Order of the samples: Witan's, which shuffles every epoch separately, or exactly Megatron-Core's, "
                  "which depends on the length of the run"}
                .one_of({"witan", "megatron"}),
            Field{"data_packing", &data_packing,
                  "How text fills samples: none concatenates documents; best_fit packs whole documents, cuts only "
                  "those longer than seq_length, and pads the rest of a sample"}
                .one_of({"none", "best_fit"}),
            Field{"split", &split,
                  "With data_samples = megatron: shares of training, validation and test, cut from the dataset in "
                  "order (otherwise held_out_fraction applies)"},
            Field{"train_data_path", &train_data_path,
                  "With data_samples = megatron: shards to train on, in the form of data_path, instead of data_path "
                  "and split"},
            Field{"valid_data_path", &valid_data_path, "With data_samples = megatron: shards to evaluate on"},
            Field{"test_data_path", &test_data_path,
                  "With data_samples = megatron: shards to evaluate on after the last step; optional"},
            Field{
                "data_cache_path", &data_cache_path,
                "Folder for the indices of data_samples = megatron; empty: the folder cache beside the first dataset"},
            Field{"tokenizer", &tokenizer,
                  "File or folder of a tokenizer, of any supported kind; empty: train one on the data"},
            Field{"json_key", &json_key,
                  "Key of the text in JSON Lines rows, or its column in Parquet and Arrow; may be a path with dots"},
            Field{"valid_data", &valid_data,
                  "Additional validation sets, each with its own curve: NAME=FILE, separated by commas; a file as in "
                  "data, or token shards as in data_path"},
            Field{"sft", &sft, "Fine-tune on conversations: rows in the messages format, rendered by a chat template"},
            Field{"preferences", &preferences,
                  "With sft, rows hold a preferred and a rejected answer: {\"prompt\", \"chosen\", \"rejected\"}, "
                  "texts or "
                  "lists of messages (objective = preference)"},
            Field{"messages_key", &messages_key, "JSON key of the messages, with sft"},
            Field{"chat_template", &chat_template,
                  "File of the chat template, with sft; empty: the one in the tokenizer's folder or of init_from"},
            Field{"loss_on", &loss_on, "Tokens that contribute to the loss with sft: the assistant's answers, or all"}
                .one_of({"answers", "all"}),
            Field{"content_special_tokens", &content_special_tokens,
                  "With sft, treat special tokens spelled in messages as control tokens; false: as text"},
            Field{"packing", &packing, "How sft fills samples with conversations"}.one_of(
                {"greedy", "best_fit", "none"}),
            Field{"held_out_fraction", &held_out_fraction, "Share of the tokens in the validation split"}.between(1e-6,
                                                                                                                  0.5),
            Field{"bad_row_share", &bad_row_share, "Fail when more than this share of rows is unusable"}.between(0, 1),
            Field{"replace_invalid_utf8", &replace_invalid_utf8,
                  "Replace invalid UTF-8 by U+FFFD instead of refusing the text"},
            Field{"seq_length", &seq_length, "Sequence length in tokens"}.between(1, 1 << 24),
            Field{"reset_position_ids", &reset_position_ids, "Restart positions after an end-of-text token"},
            Field{"reset_attention_mask", &reset_attention_mask, "Do not attend across an end-of-text token"},
            Field{"eod_mask_loss", &eod_mask_loss, "Mask the loss of the token after an end-of-text token"},
        }},
       {"tokenizer", bpe.fields()}});
}

void DataConfig::validate_megatron() const {
  require<ConfigError>(!sft,
                       "data_samples = \"megatron\" with sft: conversations are packed whole, which Megatron-Core's "
                       "index does not do; set data_samples = \"witan\"");
  require<ConfigError>(data_packing == "none", "data_packing = ", data_packing,
                       " with data_samples = \"megatron\": Megatron-Core's samples are cut from documents that lie end "
                       "to end; set data_samples = \"witan\"");
  megatron::parse_split(split);
  if (!data_path.empty()) megatron::parse_blend(data_path, "data_path");
  require<ConfigError>(train_data_path.empty() || (data.empty() && data_path.empty()), "train_data_path and ",
                       data.empty() ? "data_path" : "data",
                       " are both set: give one dataset that split divides, or one for each split");
  require<ConfigError>(train_data_path.empty() == valid_data_path.empty(),
                       "train_data_path and valid_data_path: give both, since a run trains and evaluates");
  require<ConfigError>(test_data_path.empty() || !train_data_path.empty(),
                       "test_data_path needs train_data_path and valid_data_path beside it");
  for (const auto& [name, file] : parse_validation_sets(valid_data))
    require<ConfigError>(name != kTestSet, "valid_data: data_samples = \"megatron\" has a set of the name ", kTestSet,
                         " already, its test split; give yours another name");
}

void DataConfig::validate() const {
  parse_validation_sets(valid_data);
  require<ConfigError>(
      !sft || !tokenizer.empty(),
      "sft = true needs tokenizer: the tokenizer of the model that is fine-tuned, whose special tokens the chat "
      "template writes");
  require<ConfigError>(!sft || !eod_mask_loss,
                       "sft = true with eod_mask_loss: loss_on decides which tokens contribute to the loss; set "
                       "eod_mask_loss = false");
  require<ConfigError>(!sft || data_packing == "none", "data_packing = ", data_packing,
                       " with sft = true: packing decides how conversations fill samples; set data_packing = "
                       "none");
  require<ConfigError>(data.empty() || data_path.empty(), "data and data_path are both set: give text or token shards");
  require<ConfigError>(!reads_shards() || !tokenizer.empty(), data_path.empty() ? "train_data_path" : "data_path",
                       " needs tokenizer: the tokenizer.json that the shards were made with");
  require<ConfigError>(
      !is_weighted() || (!megatron_samples() && !(data.empty() && data_path.empty())),
      "data_weights, data_temperature, data_max_epochs and data_schedule mix datasets in Witan's order: ",
      megatron_samples() ? "data_samples = \"megatron\" takes weights in data_path"
                         : "name them with data or data_path");
  if (megatron_samples()) return validate_megatron();
  const megatron::Shares shares = megatron::parse_split(split);
  require<ConfigError>(shares[1] || shares[2], "split = ", split,
                       " holds nothing out, and data_samples = \"witan\" always holds out held_out_fraction of the "
                       "tokens: leave split out");
  require<ConfigError>(train_data_path.empty() && valid_data_path.empty() && test_data_path.empty(),
                       "train_data_path, valid_data_path and test_data_path need data_samples = \"megatron\"; Witan's "
                       "order takes data_path and held_out_fraction");
}

}  // namespace witan

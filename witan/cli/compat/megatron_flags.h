// Every flag of Megatron-LM's command lines that Witan knows, and its effect: the table of docs/megatron.md. Source:
// megatron/training/arguments.py (releases core_r0.9 and later) and megatron/core/transformer/moe/README.md of
// github.com/NVIDIA/Megatron-LM. The rows are in megatron_flags_*.cpp, under Megatron-LM's own headings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace witan::cli {

class MegatronSettings;  // megatron_rules.h
struct GivenFlag;

// How Witan treats a flag of a Megatron-LM command line.
enum class FlagKind : uint8_t {
  honoured,  // it sets a key of the configuration
  harmless,  // it changes neither result nor memory here: accepted, and named once
  refused,   // ignoring it would change the result or the memory
};

enum class Takes : uint8_t { nothing, one, some };  // values: none, one, one or more (argparse's nargs='+')

struct MegatronFlag {
  using Rule = void (*)(const GivenFlag& given, MegatronSettings& settings);

  std::string name;  // as Megatron-LM spells it
  FlagKind kind;
  Takes takes = Takes::nothing;
  std::string key = {};                    // honoured: the key that is set,
  std::string value = {};                  // to this value if the flag has none
  std::vector<std::string> accepted = {};  // harmless: the accepted values; others are refused. Empty: any
  std::string why = {};                    // harmless, refused: the reason; honoured: how, if the key is not enough
  Rule rule = nullptr;                     // honoured: if setting a key is not enough
};

// Constructors of table rows.
MegatronFlag same(std::string name);                                            // the key of that name, with its value
MegatronFlag same_truth(std::string name);                                      // a boolean key of that name
MegatronFlag sets(std::string name, std::string key, std::string value);        // a flag without a value
MegatronFlag renamed(std::string name, std::string key, std::string why = {});  // another key, with the flag's value
MegatronFlag ruled(std::string name, Takes takes, MegatronFlag::Rule rule, std::string why);
MegatronFlag harmless(std::string name, std::string why, Takes takes = Takes::nothing);
MegatronFlag only(std::string name, std::vector<std::string> accepted, std::string why);
MegatronFlag refused(std::string name, std::string why, Takes takes = Takes::nothing);

struct MegatronSection {
  std::string title;
  std::vector<MegatronFlag> flags;
};

// In the order of the document.
MegatronSection megatron_model_flags();
MegatronSection megatron_moe_flags();
MegatronSection megatron_regularization_flags();  // dropout, weight decay, Adam
MegatronSection megatron_training_flags();
MegatronSection megatron_learning_rate_flags();
MegatronSection megatron_precision_flags();
MegatronSection megatron_distributed_flags();
MegatronSection megatron_kernel_flags();
MegatronSection megatron_data_flags();
MegatronSection megatron_checkpoint_flags();
MegatronSection megatron_logging_flags();
MegatronSection megatron_launcher_flags();

const std::vector<MegatronSection>& megatron_sections();
// Null if there is no such flag. Megatron-LM and torchrun spell some flags with underscores: - and _ are equivalent.
const MegatronFlag* find_megatron_flag(std::string_view name);
std::vector<std::string> megatron_flag_names();

// The table of docs/megatron.md: Markdown, a heading and a table for each section.
std::string megatron_table();

}  // namespace witan::cli

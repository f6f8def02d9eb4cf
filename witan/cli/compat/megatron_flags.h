// Every flag of Megatron-LM's command lines that Witan knows, and what becomes of it: the table of docs/megatron.md.
// Source: megatron/training/arguments.py (releases core_r0.9 and later) and megatron/core/transformer/moe/README.md of
// github.com/NVIDIA/Megatron-LM. The rows stand in megatron_flags_*.cpp, by Megatron-LM's own headings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace witan::cli {

class MegatronSettings;  // megatron_rules.h
struct GivenFlag;

// What a flag of a Megatron-LM command line comes to.
enum class FlagKind : uint8_t {
  honoured,  // it sets a key of the configuration
  harmless,  // what it asks for changes neither result nor memory here: accepted, and named once
  refused,   // ignoring it would change the result or the memory
};

enum class Takes : uint8_t { nothing, one, some };  // values: none, one, one or more (argparse's nargs='+')

struct MegatronFlag {
  using Rule = void (*)(const GivenFlag& given, MegatronSettings& settings);

  std::string name;  // as Megatron-LM spells it
  FlagKind kind;
  Takes takes = Takes::nothing;
  std::string key = {};                    // honoured: what is set,
  std::string value = {};                  // to this if the flag has no value
  std::vector<std::string> accepted = {};  // harmless: the values that are; others are refused. Empty: any
  std::string why = {};  // harmless: why; refused: why, and the way out; honoured: how, where the key does not tell
  Rule rule = nullptr;   // honoured: does what a key cannot say
};

// Rows of the table.
MegatronFlag same(std::string name);                                            // the key of that name, with its value
MegatronFlag same_truth(std::string name);                                      // a true|false key of that name
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
// Null if there is none of that name. Megatron-LM and torchrun spell some flags with underscores: - and _ are one.
const MegatronFlag* find_megatron_flag(std::string_view name);
std::vector<std::string> megatron_flag_names();

// The table as docs/megatron.md has it: Markdown, a heading and a table for each section.
std::string megatron_table();

}  // namespace witan::cli
